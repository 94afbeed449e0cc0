//! The recording machine and its clocks.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use entity::Tsc;
use rustix::time::ClockId;
use trace::Recording;

use crate::ptrace::Exit;

/// The shortest time over which the timestamp counter is compared with the clock. It gives the
/// frequency to about one in ten thousand.
const CALIBRATION: Duration = Duration::from_millis(2);

/// Reads the timestamp counter.
pub fn tsc() -> Tsc {
    // SAFETY: every x86-64 processor has the instruction.
    Tsc::new(unsafe { core::arch::x86_64::_rdtsc() })
}

/// Returns the processor time that this process has used.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Returns how a process ended that is not a child of the recorder, if the kernel reports it. The
/// kernel does so after the parent has waited for the process.
pub fn exit_of(process: BorrowedFd) -> Option<Exit> {
    const PIDFD_GET_INFO: u64 = 0xc040_ff0b;
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    const PATIENCE: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The kernel's `struct pidfd_info`: a mask, the fields that it selects, and the status at
        // the end.
        let mut information = [0_u64; 8];
        information[0] = PIDFD_INFO_EXIT;
        // SAFETY: the kernel fills the structure, whose size is part of the request.
        let status = unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO, information.as_mut_ptr()) };
        if status == 0 && information[0] & PIDFD_INFO_EXIT != 0 {
            let status = (information[7] >> 32) as i32;
            let signal = status & 0x7f;
            return Some(if signal == 0 { Exit::Code(status >> 8 & 0xff) } else { Exit::Signal(signal) });
        }
        let is_unknown = status != 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
        if is_unknown || Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A measurement of the timestamp counter's frequency. The earlier it is started, the less
/// [`Self::frequency`] has to wait.
pub struct Calibration {
    tsc: Tsc,
    time: Instant,
}

impl Calibration {
    pub fn start() -> Self {
        Self { time: Instant::now(), tsc: tsc() }
    }

    /// Returns the frequency of the timestamp counter in hertz.
    pub fn frequency(&self) -> u64 {
        if let Some(rest) = CALIBRATION.checked_sub(self.time.elapsed()) {
            std::thread::sleep(rest);
        }
        let (elapsed, ticks) = (self.time.elapsed(), tsc() - self.tsc);
        (u128::from(ticks) * 1_000_000_000 / elapsed.as_nanos().max(1)) as u64
    }
}

/// Describes a recording that is about to begin.
pub fn describe(command: Vec<String>, pid: u32, calibration: &Calibration) -> Recording {
    let names = rustix::system::uname();
    let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
    let tsc_hz = calibration.frequency();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Recording {
        command,
        pid,
        tsc_hz,
        start_unix_nanos: since_1970.as_nanos() as u64,
        start_tsc: tsc(),
        host: text(names.nodename()),
        cpu: cpu_model(),
        system: format!("{} {}", text(names.sysname()), text(names.release())),
        recorder: concat!("trackway ", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Recording::default()
    }
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default()
}
