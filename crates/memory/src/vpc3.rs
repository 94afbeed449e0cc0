//! VPC3 (Burtscher, "VPC3: A Fast and Effective Trace-Compression Algorithm", SIGMETRICS 2004),
//! with which METRIC compares itself (section 5.1, Table I).
//!
//! A *record* is the PC of an access and its address. For each of the two fields, a *bank* of value
//! predictors predicts what comes. If a prediction is right, its *code* is written, otherwise the
//! code for none, and the value. So the records become four streams, of which the second stage
//! makes less: codes and values of the PCs, codes and values of the addresses. All predictors are
//! updated with every record. If several are right, the one that was right and chosen most often is
//! chosen, so that few codes occur.
//!
//! | field | predictor | predictions | lines of the first level | lines of the second level |
//! | --- | --- | --- | --- | --- |
//! | PC | FCM, order 1 | 2 | 1, shared | 131072 |
//! | PC | FCM, order 3 | 2 | 1, shared | 524288 |
//! | address | DFCM, order 1 | 2 | 65536, shared | 131072 |
//! | address | DFCM, order 3 | 2 | 65536, shared | 524288 |
//! | address | FCM, order 1 | 2 | 65536 | 524288 |
//! | address | last values | 4 | 65536 | |
//!
//! * A *last-value predictor* keeps the last values of a line; the PC selects the line.
//! * An *FCM* (finite context method) of order n keeps, in a line of its second level, the values
//!   that followed the last n values of its first level when these came before. The first level has
//!   one line for all PCs, or is selected by the PC.
//! * A *DFCM* (differential FCM) does the same with the differences between values.
//!
//! Kinds, orders and sizes are those of section 5.5, "VPC3 and VPC4 Predictor Configurations", in
//! Burtscher et al., "The VPC Trace-Compression Algorithms", IEEE Transactions on Computers 54(11),
//! 2005, as comments in the sources of the Simutrace storage server cite it. The default of TCgen
//! (Burtscher and Sam, CGO 2005) is a part of that:
//! `32-Bit Field 1 = {L1 = 1, L2 = 131072: FCM3[2], FCM1[2]}` and
//! `64-Bit Field 2 = {L1 = 65536, L2 = 131072: DFCM3[2], FCM1[2], LV[4]}`, where a second level of
//! order n has 2^(n−1) times as many lines as L2 says. The fields, 4 and 8 bytes wide, and the four
//! streams are those of the program that its author published.
//!
//! The hash of a context folds a value to the bits of a line number and shifts the hash of the
//! values before by one bit (select-fold-shift-xor). So order 3 has two bits more than order 1 has.
//! A line changes only if its first value differs (the update of VPC4), so that a line keeps two
//! different values.
//!
//! Records are packed in chunks, of which each needs those before it. [`Vpc3Compressor`] returns
//! them, [`Vpc3Decompressor`] takes them in the same order.

mod bank;
mod chunk;
mod table;

pub use chunk::{CHUNK_RECORDS, Vpc3Compressor, Vpc3Decompressor};

/// An access: the address of an instruction, or its number, and the address that it accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vpc3Record {
    pub pc: u32,
    pub address: u64,
}
