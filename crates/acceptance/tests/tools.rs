//! Common tools of a system, each run briefly, in every data mode: output and status are as without
//! the recorder, and the trace is sound.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use acceptance::source::{compile, succeed, write};
use acceptance::{Call, RecordedCall, tool};
use tempfile::TempDir;
use workloads::Exit;

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn call(name: &str, arguments: &[&str]) -> Call {
    Call::new(tool::required(name)).args(arguments)
}

fn check(name: &str, arguments: &[&str], input: impl Into<Vec<u8>>) -> RecordedCall {
    call(name, arguments).input(input).check()
}

/// Lines with three columns of numbers and words.
fn lines() -> String {
    (0..4000).map(|i| format!("{} word{} {}\n", i * 7919 % 1000, i % 37, i * 31 % 97)).collect()
}

/// Compressible, but not trivially.
fn sample(length: usize) -> Vec<u8> {
    let mut state = 1u32;
    let byte = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"etaoin shrdlu\ncmfwyp"[(state >> 28) as usize + (state >> 20) as usize % 4]
    };
    (0..length).map(byte).collect()
}

/// A directory with thirty files.
fn tree() -> TempDir {
    let directory = scratch();
    for number in 0..30 {
        write(directory.path(), &format!("file{number}"), format!("{number}\n").repeat(number * number));
    }
    directory
}

// ------------------------------------------------------------------------------------------- text

#[test]
fn awk_runs_as_natively() {
    let script = "{ sum[$2] += $1; n[$2]++ } END { for (w in sum) printf \"%s %.3f\\n\", w, sum[w] / n[w] | \"sort\" }";
    check("awk", &[script], lines());
}

#[test]
fn sed_runs_as_natively() {
    check("sed", &["-nE", "s/^([0-9]+) (word[0-9]*)/\\2: \\1/; /7/p"], lines());
}

#[test]
fn grep_runs_as_natively() {
    check("grep", &["-nE", "^[0-9]*3 .*(1|2)$"], lines());
    check("grep", &["no such line"], lines());
    // Compiles its expression to machine code.
    check("grep", &["-cP", "^\\d*3 \\w+(1|2) .*7"], lines());
}

#[test]
fn sort_runs_as_natively() {
    check("sort", &["-k2,2", "-k1,1n", "--parallel=2", "-S", "1M"], lines());
}

#[test]
fn diff_and_patch_run_as_natively() {
    let directory = scratch();
    let before = lines();
    let after: String =
        before.lines().enumerate().filter(|(i, _)| i % 50 != 7).map(|(_, l)| format!("{l}\n")).collect();
    write(directory.path(), "a", &before);
    write(directory.path(), "b", &after);
    let changes = call("diff", &["-u", "--label", "a", "--label", "b", "a", "b"]).directory(directory.path()).check();
    assert_eq!(changes.finished.exit, Exit::Status(1));
    let result = directory.path().join("result").to_string_lossy().into_owned();
    call("patch", &["-o", &result, "a"]).directory(directory.path()).input(changes.finished.stdout).check();
    assert!(fs::read_to_string(result).unwrap() == after);
}

#[test]
fn m4_runs_as_natively() {
    check("m4", &[], "define(`f', `ifelse($1, 0, 1, `eval($1 * f(decr($1)))')')f(10) f(12)\nforeach\n");
}

#[test]
fn bc_runs_as_natively() {
    check("bc", &["-l"], "scale = 200\n4 * a(1)\ne(1)\n2 ^ 500\n1 / 0\n");
}

#[test]
fn jq_runs_as_natively() {
    let numbers: String = (0..2000).fold(String::new(), |mut text, i| {
        writeln!(text, "{{\"n\": {i}, \"list\": [{}, \"x{}\"]}}", i * 7 % 13, i % 5).unwrap();
        text
    });
    let program = "map(select(.n % 3 == 0)) | group_by(.list[1]) | map({key: .[0].list[1], value: (map(.n) | add)}) | from_entries";
    check("jq", &["-s", program], numbers);
    assert_ne!(check("jq", &[".a"], "{ broken").finished.exit, Exit::Status(0));
}

#[test]
fn vim_runs_as_natively() {
    let directory = scratch();
    let file = write(directory.path(), "text", lines());
    let commands = ["%s/word\\(\\d\\+\\)/<\\1>/g", "g/^9/d", "sort n", "w! result", "q!"];
    let arguments = commands.iter().flat_map(|command| ["-c", command]);
    let vim =
        call("vim", &["-u", "NONE", "-i", "NONE", "-n", "-es"]).args(arguments).arg(file).directory(directory.path());
    same_file(&vim, &directory.path().join("result"));
}

// ------------------------------------------------------------------------------------ compressors

/// Compresses, and decompresses the result.
fn check_compressor(name: &str, compress: &[&str], expand: &[&str], length: usize) -> RecordedCall {
    let text = sample(length);
    let compressed = check(name, compress, text.clone());
    let expanded = check(name, expand, compressed.finished.stdout.clone());
    assert!(expanded.finished.stdout == text);
    let damaged = check(name, expand, text);
    assert_ne!(damaged.finished.exit, Exit::Status(0));
    compressed
}

#[test]
fn gzip_runs_as_natively() {
    check_compressor("gzip", &["-9", "-n", "-c"], &["-d", "-c"], 300_000);
}

#[test]
fn bzip2_runs_as_natively() {
    check_compressor("bzip2", &["-c"], &["-d", "-c"], 200_000);
}

#[test]
fn xz_with_threads_runs_as_natively() {
    let recorded = check_compressor("xz", &["-T2", "--block-size=256KiB", "-1", "-c"], &["-d", "-T2", "-c"], 1 << 20);
    assert!(recorded.trace.threads().len() > 2, "{} threads", recorded.trace.threads().len());
}

#[test]
fn zstd_with_threads_runs_as_natively() {
    let recorded = check_compressor("zstd", &["-T2", "-3", "-c"], &["-d", "-c"], 2 << 20);
    assert!(recorded.trace.threads().len() > 2, "{} threads", recorded.trace.threads().len());
}

// ------------------------------------------------------------------------------------------ files

#[test]
fn tar_runs_as_natively() {
    let directory = tree();
    let tar = |arguments: &[&str]| call("tar", arguments).directory(directory.path());
    let archive = tar(&["--sort=name", "--mtime=@0", "-cf", "-", "."]).check().finished.stdout;
    tar(&["-tvf", "-"]).input(archive).check();
}

#[test]
fn find_runs_as_natively() {
    let directory = tree();
    let arguments = [".", "-name", "*[13579]", "-size", "-2", "-exec", "cat", "{}", ";"];
    call("find", &arguments).directory(directory.path()).check();
}

#[test]
fn coreutils_run_as_natively() {
    let directory = tree();
    call("ls", &["-l"]).directory(directory.path()).check();
    call("ls", &["-l", "nothing"]).directory(directory.path()).check();
    call("sha256sum", &["file1", "file29"]).directory(directory.path()).check();
    check("factor", &["1000000007", "340282366920938463463374607431768211455"], "");
}

#[test]
fn rsync_runs_as_natively() {
    let directory = tree();
    let target = scratch();
    let copy = |name: &str| {
        let into = target.path().join(name);
        call("rsync", &["-a", "--delete", "--checksum", "./"]).arg(&into).directory(directory.path())
    };
    let native = copy("native").natively();
    assert_eq!(native.exit, Exit::Status(0), "{}", native.stderr_text());
    copy("recorded").check_against(&native);
    let listing = |name: &str| {
        let output = Command::new("ls").arg("-l").current_dir(target.path().join(name)).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(listing("recorded"), listing("native"));
}

#[test]
fn git_runs_as_natively() {
    let directory = tree();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(tool::required("git"));
        command.args(["-c", "user.name=n", "-c", "user.email=e"]).args(arguments).current_dir(directory.path());
        succeed(command.env("GIT_AUTHOR_DATE", "@0 +0000").env("GIT_COMMITTER_DATE", "@0 +0000"));
    };
    run(&["init", "-q"]);
    run(&["add", "."]);
    run(&["commit", "-q", "-m", "first"]);
    write(directory.path(), "file3", "other\n");
    run(&["commit", "-q", "-a", "-m", "second"]);
    let git = |arguments: &[&str]| call("git", arguments).directory(directory.path());
    git(&["log", "-p", "--stat"]).check();
    git(&["fsck", "--full"]).check();
    git(&["grep", "-c", "-E", "1.*1"]).check();
    assert_eq!(git(&["show", "nothing"]).check().finished.exit, Exit::Status(128));
}

#[test]
fn make_builds_as_natively() {
    let directory = scratch();
    let rules = "all: a.o b.o\n\t@echo linking $^\n%.o: %.txt\n\t@echo making $@; sleep 0.02; cp $< $@\nclean:\n\trm -f *.o\n.PHONY: all clean\n";
    write(directory.path(), "Makefile", rules);
    write(directory.path(), "a.txt", "a");
    write(directory.path(), "b.txt", "b");
    let make = |arguments: &[&str]| call("make", arguments).directory(directory.path());
    // The order of the two varies.
    let sorted = |text: String| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let clean = || succeed(Command::new("make").arg("clean").current_dir(directory.path()));
    let native = make(&["-j2", "-O"]).natively();
    for call in make(&["-j2", "-O"]).in_every_mode() {
        clean();
        let recorded = call.recorded();
        assert_eq!(sorted(recorded.finished.stdout_text()), sorted(native.stdout_text()));
        assert_eq!(recorded.finished.exit, native.exit);
    }
    make(&["nothing"]).check();
}

#[test]
fn curl_reads_a_file_as_natively() {
    let directory = scratch();
    let file = write(directory.path(), "file", sample(100_000));
    call("curl", &["-s"]).arg(format!("file://{}", file.display())).check();
    assert_eq!(check("curl", &["-s", "file:///no/such/file"], "").finished.exit, Exit::Status(37));
}

// ----------------------------------------------------------------------------------------- shells

#[test]
fn bash_with_pipes_traps_and_substitutions_runs_as_natively() {
    let script = r#"
        trap 'echo got usr1' USR1
        trap 'echo leaving with $?' EXIT
        kill -USR1 $$
        seq 1 2000 | grep 7 | sort -rn | head -3
        words=$(echo $(echo a; echo b) "$(printf '%s' c)")
        echo "words: $words"
        count=0; for i in {1..300}; do count=$((count + i)); done; echo $count
        while read -r line; do echo "<$line>"; done < <(printf '1\n2\n')
        (exit 6); echo "status $?"
        false | true; echo "${PIPESTATUS[@]}"
        sleep 0.05 & wait $!; echo "waited $?"
        cat <<< "here" >&2
        ( trap 'echo child term; exit 3' TERM; kill -TERM $BASHPID; sleep 5 ); echo "child $?"
        exit 21
    "#;
    assert_eq!(check("bash", &["-c", script], "").finished.exit, Exit::Status(21));
}

#[test]
fn dash_runs_as_natively() {
    let script = "i=0; while [ $i -lt 5000 ]; do i=$((i + 1)); done; echo $i; trap 'echo term' TERM; kill $$; exit 4";
    assert_eq!(check("dash", &["-c", script], "").finished.exit, Exit::Status(4));
}

#[test]
fn busybox_runs_as_natively() {
    check("busybox", &["sha256sum"], sample(100_000));
    check("busybox", &["ash", "-c", "for i in 1 2 3; do echo $i; done | busybox tac; exit 2"], "");
    check("busybox", &["awk", "{ s += $1 } END { print s }"], lines());
}

#[test]
fn a_killed_shell_ends_as_natively() {
    let recorded = Call::new("sh").args(["-c", "echo before; kill -KILL $$"]).check();
    assert_eq!(recorded.finished.exit, Exit::Signal(libc::SIGKILL));
    let recorded = Call::new("sh").args(["-c", "kill -TERM $$"]).check();
    assert_eq!(recorded.finished.exit, Exit::Signal(libc::SIGTERM));
}

// ------------------------------------------------------------------------------------------
// secrets, tables, pictures

#[test]
fn openssl_runs_as_natively() {
    let directory = scratch();
    let text = write(directory.path(), "text", sample(200_000));
    let run = |arguments: &[&str]| {
        succeed(Command::new(tool::required("openssl")).args(arguments).current_dir(directory.path()));
    };
    run(&["genpkey", "-quiet", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "key"]);
    run(&["pkey", "-in", "key", "-pubout", "-out", "public"]);
    run(&["req", "-x509", "-key", "key", "-subj", "/CN=a", "-days", "9999", "-out", "certificate"]);
    let openssl = |arguments: &[&str]| call("openssl", arguments).directory(directory.path());
    for digest in ["-sha512", "-sha3-256", "-blake2s256", "-md5"] {
        openssl(&["dgst", digest]).arg(&text).check();
    }
    let cipher = ["-pbkdf2", "-S", "0011223344556677", "-pass", "pass:x", "-in", "text"];
    openssl(&["enc", "-aes-256-cbc"]).args(cipher).check();
    openssl(&["enc", "-chacha20"]).args(cipher).check();
    let signed = openssl(&["dgst", "-sha256", "-sign", "key"]).arg(&text).check();
    write(directory.path(), "signature", signed.finished.stdout);
    openssl(&["dgst", "-sha256", "-verify", "public", "-signature", "signature"]).arg(&text).check();
    openssl(&["verify", "-CAfile", "certificate", "certificate"]).check();
}

#[test]
fn ssh_keygen_runs_as_natively() {
    let directory = scratch();
    let run = |arguments: &[&str]| {
        succeed(Command::new(tool::required("ssh-keygen")).args(arguments).current_dir(directory.path()));
    };
    run(&["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", "key"]);
    call("ssh-keygen", &["-l", "-v", "-f", "key.pub"]).directory(directory.path()).check();
    call("ssh-keygen", &["-y", "-f", "key"]).directory(directory.path()).check();
}

#[test]
fn sqlite_runs_as_natively() {
    let script = "
        create table t(a, b);
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 4000) insert into t select x, x * 7919 % 1007 from c;
        create index i on t(b);
        select count(*), sum(a) from t where b between 100 and 900;
        select b % 10, count(*), avg(a) from t group by b % 10 order by 1;
        select * from nothing;";
    check("sqlite3", &[":memory:"], script);
}

#[test]
fn imagemagick_runs_as_natively() {
    let arguments = [
        "-size",
        "80x80",
        "gradient:red-blue",
        "-rotate",
        "30",
        "-blur",
        "0x2",
        "-resize",
        "50%",
        "-depth",
        "8",
        "ppm:-",
    ];
    check("convert", &arguments, "");
}

#[test]
fn stress_ng_runs_as_natively() {
    // Verifies what it computes by itself.
    for class in ["cpu", "matrix", "vecmath", "bsearch", "vm", "memcpy", "malloc", "stack", "brk"] {
        let (workers, operations) = (format!("--{class}"), format!("--{class}-ops"));
        let arguments = [workers.as_str(), "1", operations.as_str(), "10", "--verify", "--quiet", "--timeout", "60"];
        call("stress-ng", &arguments).args(["--vm-bytes", "1m"]).check();
    }
}

// -------------------------------------------------------------------------------------- compilers

/// The compiler proper, not its driver.
fn compiler_proper(name: &str) -> PathBuf {
    let output = Command::new(tool::required("gcc")).arg(format!("-print-prog-name={name}")).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

const FUNCTIONS: usize = 40;

fn c_source() -> String {
    (0..FUNCTIONS)
        .map(|i| format!("int f{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) s += a[j] * (s ^ {i}); return s; }}\n"))
        .collect()
}

#[test]
fn cc1_runs_as_natively() {
    let directory = scratch();
    let file = write(directory.path(), "many.c", c_source());
    let recorded = Call::new(compiler_proper("cc1")).args(["-quiet", "-O2", "-o", "-"]).arg(&file).check();
    assert!(recorded.finished.stdout_text().contains("f39:"));
    let broken = write(directory.path(), "broken.c", "int f( { return }\n");
    let recorded = Call::new(compiler_proper("cc1")).args(["-quiet", "-o", "-"]).arg(&broken).check();
    assert_eq!(recorded.finished.exit, Exit::Status(1));
}

#[test]
fn cc1plus_runs_as_natively() {
    let directory = scratch();
    let text =
        "#include <map>\n#include <string>\nstd::map<std::string, int> m;\nint f(const char *s) { return m[s]++; }\n";
    let file = write(directory.path(), "some.cc", text);
    Call::new(compiler_proper("cc1plus")).args(["-quiet", "-O1", "-o", "-", "-D_GNU_SOURCE"]).arg(&file).check();
}

/// A command that leaves a file: natively and recorded, the file is the same.
fn same_file(call: &Call, file: &Path) {
    let native = call.natively();
    let expected = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}: {native:?}", file.display()));
    for call in call.in_every_mode() {
        fs::remove_file(file).unwrap();
        call.recorded().assert_finished_as(&native);
        assert!(fs::read(file).unwrap() == expected, "{call:?}");
    }
}

#[test]
fn as_and_ld_and_objdump_run_as_natively() {
    let directory = scratch();
    let source = write(directory.path(), "some.c", c_source() + "int main(void) { return f3(0, 0); }\n");
    succeed(
        Command::new("gcc").args(["-O1", "-S", "-fno-pie", "-o", "some.s"]).arg(source).current_dir(directory.path()),
    );
    let call = |name: &str, arguments: &[&str]| call(name, arguments).directory(directory.path());
    same_file(&call("as", &["-o", "some.o", "some.s"]), &directory.path().join("some.o"));
    same_file(&call("ld", &["-e", "main", "-o", "some", "some.o"]), &directory.path().join("some"));
    call("ld", &["-o", "none", "nothing.o"]).check();
    call("objdump", &["-d", "some"]).check();
}

/// The driver and its children, one of them the linker.
#[test]
fn gcc_the_driver_runs_as_natively() {
    let directory = scratch();
    write(directory.path(), "a.c", "int main(void) { return 3; }\n");
    let gcc = call("gcc", &["-Wl,--build-id=none", "-o", "out", "a.c"]).directory(directory.path());
    same_file(&gcc, &directory.path().join("out"));
}

#[test]
fn rustc_prints_its_version() {
    check("rustc", &["--version", "--verbose"], "");
}

/// A debugger is recorded like any other program; its child is not.
#[test]
fn gdb_runs_as_natively() {
    let directory = scratch();
    let text = "int twice(int n) { return 2 * n; }\nint main(void) { return twice(4); }\n";
    let program = compile(directory.path(), "main.c", text, &["gcc", "-g", "-O0"]);
    call("gdb", &["-nx", "--batch", "-ex", "disassemble main", "-ex", "info functions twice"]).arg(&program).check();
    let commands = ["break twice", "run", "bt", "print n", "stepi 5", "continue"];
    let arguments = commands.iter().flat_map(|command| ["-ex", command]);
    for call in call("gdb", &["-nx", "--batch"]).args(arguments).arg(&program).in_every_mode() {
        let finished = call.recorded().finished;
        let text = finished.stdout_text();
        let right = text.contains("$1 = 4") && text.contains("exited with code 010");
        assert!(right, "{text}{}", finished.stderr_text());
    }
}
