//! Checks the flow filter: encodes a whole trace, decodes it from the messages, and compares.

use filter::traptor::Predictors;
use replay::branches::BranchDecoders;
use replay::control::DecodedFlow;
use replay::{CheckError, CheckReport, MessageQueues, MessageSources};
use trace::{RoundRobinUnit, Trace};

use super::{FlowFilter, FlowSettings, FlowStatistics};

/// Filters the whole trace, decodes it from the messages alone, and compares every step.
pub fn check(trace: &Trace, settings: &FlowSettings) -> Result<CheckReport<FlowStatistics>, CheckError> {
    let mut filter = FlowFilter::new(settings)?;
    let predictors = Predictors::new(&settings.sizes)?;
    let mut decoded = DecodedFlow::new(BranchDecoders::new(
        predictors,
        settings.sharing,
        settings.count_start,
        MessageQueues::default(),
    ));
    let (mut report, blocks) = (CheckReport::default(), trace.blocks());
    report.for_each_batch(settings.sharing.order(trace, RoundRobinUnit::Branches)?, |batch, report| {
        filter.batch(blocks, batch, |message| {
            report.messages += 1;
            decoded.decoder.source.of(message.thread).push_back(message.message);
        });
        decoded.compare_batch(blocks, batch, report);
    });
    report.statistics = filter.statistics();
    report.check_all_used(&decoded.decoder.source);
    Ok(report)
}
