//! Load values as bits: the thread, the number of known loads before, and the value in as many
//! bytes as the program says (Tewar 2015, Figures 4.6 and 4.7). mlvNX_b writes every load and needs
//! no count. A [`LoadWriter`] writes to a port, and a [`LoadReader`] reads back.

use filter::cfiat::LoadMessageSource;
use replay::CheckReport;
use replay::MessageSources;
use replay::loads::for_each_access;
use trace::{Batch, ThreadId};

use crate::bits::BitReader;
use crate::chunks::Coding;
use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::message::{MessageKind, MessageStream};

/// Writes loads to a port.
#[derive(Clone, Debug)]
pub struct LoadWriter {
    cores: Cores,
    /// Encoding of the number of known loads; `None` if all loads are written.
    count: Option<Coding>,
    pub port: Port,
}

impl LoadWriter {
    #[must_use]
    pub fn new(cores: Cores, count: Option<Coding>, port: Port) -> Self {
        Self { cores, count, port }
    }

    /// Writes a load of the thread on `core`, after `hits` known loads.
    #[inline]
    pub fn write(&mut self, core: usize, hits: u64, value: &[u8]) {
        self.port.messages += 1;
        self.cores.write(&mut self.port, core);
        if let Some(count) = &mut self.count {
            count.write(&mut self.port, Field::FahCnt, hits);
        }
        self.port.put_bytes(Field::Lv, value);
    }

    /// Writes all loads of a batch.
    pub fn batch(&mut self, batch: &Batch) {
        let core = self.cores.of(batch.thread());
        for access in batch.accesses().filter(|access| !access.is_write()) {
            if let Some(value) = batch.value(&access) {
                self.write(core, 0, value);
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
    pub(crate) stream: MessageStream<'b, (usize, u64)>,
    /// Core of the current thread.
    core: usize,
}

/// Reads core and count of the next load.
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
        let stream = MessageStream::new(bits, |bits| read_head(&cores, &mut count, bits));
        Self { cores, count, stream, core: 0 }
    }

    /// Compares all loads of a batch with the stream, which contains all loads.
    pub fn compare_batch<C>(&mut self, batch: &Batch, report: &mut CheckReport<C>) {
        let (thread, mut decoded) = (batch.thread(), Vec::new());
        self.of(thread);
        for_each_access(batch, |_, access| {
            let Some(value) = batch.value(&access).filter(|_| !access.is_write()) else { return };
            decoded.clear();
            decoded.resize(value.len(), 0);
            if self.take_value(0, &mut decoded) == Some(true) && decoded == value {
                report.matches += 1;
            } else {
                let pc = access.pc();
                report.add_problem(|| format!("thread {thread}: the load at {pc:#x} is decoded wrong"));
            }
        });
    }
}

impl LoadMessageSource for LoadReader<'_> {
    fn take_value(&mut self, hits: u64, value: &mut [u8]) -> Option<bool> {
        if self.stream.head != Some((self.core, hits)) {
            return Some(false);
        }
        for byte in &mut *value {
            *byte = u8::try_from(self.stream.bits.get(8)?).ok()?;
        }
        let Self { cores, count, stream, core } = self;
        stream.log.add(*core, || MessageKind::Load { hits, value: value.to_vec() });
        stream.advance(|bits| read_head(cores, count, bits));
        Some(true)
    }
}

impl MessageSources for LoadReader<'_> {
    type Messages = Self;

    fn of(&mut self, thread: ThreadId) -> &mut Self {
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
        let cores = Cores::new([3, 7].map(ThreadId::new), None).unwrap();
        let mut writer = LoadWriter::new(cores.clone(), count(), Port::writing());
        writer.write(0, 0, &[0xa5]);
        writer.write(1, 6, &[1, 0x80]);
        let bytes = writer.port.finish();
        let text: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        let expected = "0 00 0 10100101  1 10 1 01 0 00000001 10000000".replace(' ', "");
        assert_eq!(&text[..writer.port.bits() as usize], expected);
        let mut reader = LoadReader::new(cores, count(), BitReader::new(&bytes, writer.port.bits()));
        let mut value = [0; 2];
        assert_eq!(reader.of(ThreadId::new(7)).take_value(6, &mut value), Some(false));
        assert_eq!((reader.of(ThreadId::new(3)).take_value(0, &mut value[..1]), value[0]), (Some(true), 0xa5));
        assert_eq!((reader.of(ThreadId::new(7)).take_value(6, &mut value), value), (Some(true), [1, 0x80]));
        assert_eq!((reader.stream.is_exhausted(), reader.stream.messages), (true, 2));
        assert_eq!(reader.of(ThreadId::new(7)).take_value(0, &mut value), Some(false));
    }
}
