//! The example of the README, word for word: prints addresses of instructions from the middle of a
//! trace.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    use trackway_trace::{InstructionIndex, Item, ThreadId, Trace};

    let trace = Trace::open("collatz.trk".as_ref())?;
    for item in trace.seek(ThreadId::FIRST, InstructionIndex::new(100_000_000))?.take(1000) {
        if let Item::Step(step) = item? {
            for instruction in trace.blocks().instructions(&step) {
                println!("{:#x}", instruction.address);
            }
        }
    }
    Ok(())
}
