//! The example of the README, word for word: prints addresses of instructions from the middle of a
//! trace.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    use trackway_trace::{Item, Trace};

    let trace = Trace::open("collatz.trk".as_ref())?;
    for item in trace.seek(0, 100_000_000)?.take(1000) {
        if let Item::Step(step) = item? {
            for instruction in trace.blocks().instructions(&step) {
                println!("{:#x}", instruction.address);
            }
        }
    }
    Ok(())
}
