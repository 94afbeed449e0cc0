//! mcfNX_b: control flow as Nexus tells it, by the length of each stream of instructions (Tewar 2015, sections 2.1 and 4.2.1).

use filter::traptor::{Kind, Message, Messages, Site, Told, Went};
use mtrace::Source;
use mtrace::control::{End, Show, ShowThread, Tell};

use crate::cores::Cores;
use crate::message::{FlowReader, FlowWriter};

/// Which branches end a stream of instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// All that are taken: what Figure 2.1 shows and what the tables were measured with.
    #[default]
    All,
    /// Those that cannot be inferred, taken conditional and indirect ones, as section 4.2.1 says: direct jumps and calls are followed in silence.
    Uninferable,
}

/// Instructions of each thread since its last message, and the thread that is looked at.
#[derive(Clone, Debug)]
struct Lengths {
    cores: Cores,
    lengths: Vec<u64>,
    core: usize,
}

impl Lengths {
    fn new(cores: Cores) -> Self {
        let lengths = vec![0; cores.threads()];
        Self { cores, lengths, core: 0 }
    }

    #[inline]
    fn own(&mut self) -> &mut u64 {
        &mut self.lengths[self.core]
    }
}

/// Makes messages of what is executed.
#[derive(Clone, Debug)]
pub struct NexusTeller {
    streams: Streams,
    lengths: Lengths,
    pub writer: FlowWriter,
}

impl NexusTeller {
    #[must_use]
    pub fn new(cores: Cores, streams: Streams, writer: FlowWriter) -> Self {
        Self { streams, lengths: Lengths::new(cores), writer }
    }
}

impl Tell for NexusTeller {
    fn thread(&mut self, thread: u32) {
        self.lengths.core = self.lengths.cores.of(thread);
    }

    fn elsewhere(&mut self, target: u64) {
        let instructions = std::mem::take(self.lengths.own());
        self.writer.tell(self.lengths.core, Message::Exception { instructions, target });
    }

    #[inline]
    fn step(&mut self, instructions: u64, end: &End) {
        *self.lengths.own() += instructions;
        let branches = *self.lengths.own();
        let tells_all = self.streams == Streams::All;
        let message = match *end {
            End::Branch(_, Went::Taken(true)) => Message::Outcome { branches },
            End::Branch(Site { kind: Kind::Call, .. }, _) | End::Jump if tells_all => Message::Outcome { branches },
            End::Branch(Site { kind, .. }, Went::To(target)) if kind != Kind::Call => {
                Message::Target { branches, target }
            }
            _ => return,
        };
        *self.lengths.own() = 0;
        self.writer.tell(self.lengths.core, message);
    }
}

/// The mirror image of [`NexusTeller`].
#[derive(Clone, Debug)]
pub struct NexusShower<'b> {
    streams: Streams,
    lengths: Lengths,
    pub reader: FlowReader<'b>,
}

impl<'b> NexusShower<'b> {
    #[must_use]
    pub fn new(cores: Cores, streams: Streams, reader: FlowReader<'b>) -> Self {
        Self { streams, lengths: Lengths::new(cores), reader }
    }
}

impl<'b> Show for NexusShower<'b> {
    type Thread<'s>
        = NexusOf<'s, 'b>
    where
        Self: 's;

    fn thread(&mut self, thread: u32) -> NexusOf<'_, 'b> {
        self.lengths.core = self.lengths.cores.of(thread);
        let Self { streams, lengths, reader } = self;
        NexusOf { streams: *streams, length: lengths.own(), reader: reader.of(thread) }
    }
}

/// What is shown of a thread.
#[derive(Debug)]
pub struct NexusOf<'s, 'b> {
    streams: Streams,
    length: &'s mut u64,
    reader: &'s mut FlowReader<'b>,
}

impl NexusOf<'_, '_> {
    /// What is told of the branch that comes now.
    fn told(&mut self, is_indirect: bool) -> Option<Told> {
        let told = self.reader.branch(*self.length, is_indirect)?;
        *self.length = 0;
        Some(told)
    }
}

impl ShowThread for NexusOf<'_, '_> {
    fn elsewhere(&mut self) -> Option<u64> {
        let target = self.reader.exception(*self.length)?;
        *self.length = 0;
        Some(target)
    }

    fn instructions(&mut self, count: u64) {
        *self.length += count;
    }

    fn jump(&mut self) {
        if self.streams == Streams::All {
            self.told(false);
        }
    }

    fn branch(&mut self, site: &Site) -> Option<Went> {
        match site.kind {
            Kind::Call => {
                self.jump();
                None
            }
            Kind::Conditional => Some(Went::Taken(self.told(false).is_some())),
            Kind::IndirectCall | Kind::IndirectJump | Kind::Return => match self.told(true)? {
                Told::To(target) => Some(Went::To(target)),
                Told::Otherwise => None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::{Field, Port};
    use crate::message::FlowCodings;

    fn site(kind: Kind) -> Site {
        Site { kind, address: 0x80488db, behind: 0x80488dd }
    }

    /// Tewar 2015, Figure 2.1: four rounds of a loop, a jump and a return, in two threads. Streams A, B, B, C, D have 15, 14, 14, 15 and 5
    /// instructions.
    fn figure_2_1(streams: Streams) -> String {
        let cores = Cores::new(0..2, None).unwrap();
        let writer = FlowWriter::new(cores.clone(), FlowCodings::fixed(Field::Sl), Port::writing());
        let mut teller = NexusTeller::new(cores, streams, writer);
        let (taken, through) = (Went::Taken(true), Went::Taken(false));
        for thread in 0..2 {
            teller.thread(thread);
            for (instructions, went) in [(15, taken), (14, taken), (14, taken), (14, through)] {
                teller.step(instructions, &End::Branch(site(Kind::Conditional), went));
            }
            teller.step(1, &End::Jump);
            teller.step(5, &End::Branch(site(Kind::Return), Went::To(3)));
        }
        let port = &mut teller.writer.port;
        let text: String = port.finish().iter().map(|byte| format!("{byte:08b}")).collect();
        text[..port.bits() as usize].to_owned()
    }

    /// A thread, lengths in one chunk each, and a target behind the last.
    fn stream(lengths: &[u64]) -> String {
        let target = format!("0{:032b}0", 3);
        let own = |thread: u32| {
            let messages: String = lengths.iter().map(|length| format!("{thread}{length:08b}0")).collect();
            messages + &target
        };
        own(0) + &own(1)
    }

    #[test]
    fn tewar_figure_2_1() {
        assert_eq!(figure_2_1(Streams::All), stream(&[15, 14, 14, 15, 5]));
        assert_eq!(figure_2_1(Streams::Uninferable), stream(&[15, 14, 14, 20]));
    }
}
