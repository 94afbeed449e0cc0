//! mlvCFiat: checks the load filter ([`replay::loads`]) over a whole trace.

use filter::cfiat::LoadMessage;
use replay::loads::{DecodedLoads, LoadFilter, LoadSettings, LoadStatistics};
use replay::{CheckError, CheckReport, MessageQueues, MessageSources};
use trace::{RoundRobinUnit, Trace};

/// Filters the whole trace, decodes it from addresses, stored values and messages, and compares
/// every load.
pub fn check(trace: &Trace, settings: &LoadSettings) -> Result<CheckReport<LoadStatistics>, CheckError> {
    let (mut filter, mut decoded) =
        (LoadFilter::new(settings)?, DecodedLoads::new(settings, MessageQueues::default())?);
    let mut report = CheckReport::default();
    report.for_each_batch(settings.sharing.order(trace, RoundRobinUnit::Accesses)?, |batch, report| {
        filter.batch(batch, |load| {
            report.messages += 1;
            let message = LoadMessage { hits: load.hits, value: load.value.to_vec() };
            decoded.source.of(load.thread).push_back(message);
        });
        decoded.compare_batch(batch, report);
    });
    report.statistics = *filter.statistics();
    report.check_all_used(&decoded.source);
    Ok(report)
}
