//! Values of loads as bits: the thread, how many loads before were known, and the value in as many bytes as the program says (Tewar 2015,
//! Figures 4.6 and 4.7). mlvNX_b tells every load and needs no count.

use filter::cfiat::Messages;
use mtrace::Checked;
use mtrace::Source;
use mtrace::loads::each_access;
use trace::Batch;

use crate::bits::BitReader;
use crate::chunks::Coding;
use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::message::{Incoming, What};

/// Writes loads to a port.
#[derive(Clone, Debug)]
pub struct LoadWriter {
    cores: Cores,
    /// Of the number of known loads; none if all are told.
    count: Option<Coding>,
    pub port: Port,
}

impl LoadWriter {
    #[must_use]
    pub fn new(cores: Cores, count: Option<Coding>, port: Port) -> Self {
        Self { cores, count, port }
    }

    /// A load of the thread on `core` goes out, behind `hits` that were known.
    #[inline]
    pub fn tell(&mut self, core: usize, hits: u64, value: &[u8]) {
        self.port.messages += 1;
        self.cores.write(&mut self.port, core);
        if let Some(count) = &mut self.count {
            count.write(&mut self.port, Field::FahCnt, hits);
        }
        self.port.put_bytes(Field::Lv, value);
    }

    /// All loads of a batch go out.
    pub fn batch(&mut self, batch: &Batch) {
        let core = self.cores.of(batch.thread());
        for access in batch.accesses().filter(|access| !access.is_write()) {
            if let Some(value) = batch.value(&access) {
                self.tell(core, 0, value);
            }
        }
    }
}

/// Reads loads back, each when it is due.
#[derive(Clone, Debug)]
pub struct LoadReader<'b> {
    cores: Cores,
    count: Option<Coding>,
    /// Heads are core and count.
    pub(crate) incoming: Incoming<'b, (usize, u64)>,
    /// The core of the thread that is asked about.
    core: usize,
}

/// Core and count of the next load.
fn read_head(cores: &Cores, count: &mut Option<Coding>, bits: &mut BitReader<'_>) -> Option<(usize, u64)> {
    let core = cores.read(bits)?;
    let count = match count {
        Some(count) => count.read(bits)?,
        None => 0,
    };
    Some((core, count))
}

impl<'b> LoadReader<'b> {
    #[must_use]
    pub fn new(cores: Cores, mut count: Option<Coding>, bits: BitReader<'b>) -> Self {
        let incoming = Incoming::new(bits, |bits| read_head(&cores, &mut count, bits));
        Self { cores, count, incoming, core: 0 }
    }

    /// Compares all loads of a batch with those that were told, which are all.
    pub fn follow<C>(&mut self, batch: &Batch, checked: &mut Checked<C>) {
        let (thread, mut shown) = (batch.thread(), Vec::new());
        self.of(thread);
        each_access(batch, |_, access| {
            let Some(value) = batch.value(&access).filter(|_| !access.is_write()) else { return };
            shown.clear();
            shown.resize(value.len(), 0);
            if self.value(0, &mut shown) == Some(true) && shown == value {
                checked.right += 1;
            } else {
                let pc = access.pc();
                checked.wrong(|| format!("thread {thread}: the load at {pc:#x} is shown wrong"));
            }
        });
    }
}

impl Messages for LoadReader<'_> {
    fn value(&mut self, hits: u64, value: &mut [u8]) -> Option<bool> {
        if self.incoming.head != Some((self.core, hits)) {
            return Some(false);
        }
        for byte in &mut *value {
            *byte = u8::try_from(self.incoming.bits.get(8)?).ok()?;
        }
        let Self { cores, count, incoming, core } = self;
        incoming.listing.add(*core, || What::Load { hits, value: value.to_vec() });
        incoming.advance(|bits| read_head(cores, count, bits));
        Some(true)
    }
}

impl Source for LoadReader<'_> {
    type Messages = Self;

    fn of(&mut self, thread: u32) -> &mut Self {
        self.core = self.cores.of(thread);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Chunks;

    /// Worked out on paper: Ti (1 bit), fahCnt in (2,2), the value as it is in memory.
    #[test]
    fn mlvcf_e_by_hand() {
        let count = || Some(Coding::Chunks(Chunks::new(2, 2).unwrap()));
        let cores = Cores::new([3, 7], None).unwrap();
        let mut writer = LoadWriter::new(cores.clone(), count(), Port::writing());
        writer.tell(0, 0, &[0xa5]);
        writer.tell(1, 6, &[1, 0x80]);
        let bytes = writer.port.finish();
        let text: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        let expected = "0 00 0 10100101  1 10 1 01 0 00000001 10000000".replace(' ', "");
        assert_eq!(&text[..writer.port.bits() as usize], expected);
        let mut reader = LoadReader::new(cores, count(), BitReader::new(&bytes, writer.port.bits()));
        let mut value = [0; 2];
        assert_eq!(reader.of(7).value(6, &mut value), Some(false));
        assert_eq!((reader.of(3).value(0, &mut value[..1]), value[0]), (Some(true), 0xa5));
        assert_eq!((reader.of(7).value(6, &mut value), value), (Some(true), [1, 0x80]));
        assert_eq!((reader.incoming.is_exhausted(), reader.incoming.messages), (true, 2));
        assert_eq!(reader.of(7).value(0, &mut value), Some(false));
    }
}
