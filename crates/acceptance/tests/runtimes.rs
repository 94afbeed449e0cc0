//! Languages with runtimes of their own: interpreters, just-in-time compilers, garbage collectors,
//! threads, exceptions. In every data mode, output and status are as without the recorder, and the
//! trace is sound.

use std::process::Command;

use acceptance::source::{compile, succeed, write};
use acceptance::{Call, RecordedCall, is_soak, tool};
use tempfile::TempDir;
use workloads::Exit;

fn scratch() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn check(name: &str, arguments: &[&str]) -> RecordedCall {
    Call::new(tool::required(name)).args(arguments).check()
}

// ----------------------------------------------------------------------------------- interpreters

/// One of the ways that the name `python3` may take: a wrapper script, a link, or the interpreter
/// itself.
#[test]
fn python_runs_as_natively() {
    let recorded = check("python3", &["-c", include_str!("../programs/mixture.py")]);
    assert_eq!(recorded.finished.exit, Exit::Status(42));
    assert!(recorded.trace.threads().len() >= 7, "{} threads", recorded.trace.threads().len());
}

#[test]
fn perl_runs_as_natively() {
    let script = r#"
        use strict; use warnings;
        my %count; my $text = join ' ', map { ($_ * 7919) % 101 } 1 .. 20000;
        $count{$_}++ for split / /, $text;
        print join(',', map { "$_=$count{$_}" } sort { $a <=> $b } keys %count), "\n";
        local $SIG{ALRM} = sub { print "alarm\n"; }; alarm 1; select undef, undef, undef, 5;
        local $SIG{USR1} = sub { print "usr1\n" }; kill 'USR1', $$;
        my $sorted = `printf 'b\na\n' | sort`; print $sorted;
        open my $pipe, '|-', 'cat' or die; print $pipe "through cat\n"; close $pipe;
        eval { die "oops\n" }; print "caught $@";
        print STDERR "warned\n"; exit 9;
    "#;
    assert_eq!(check("perl", &["-e", script]).finished.exit, Exit::Status(9));
}

#[test]
fn tcl_runs_as_natively() {
    let directory = scratch();
    let script = "
        proc fibonacci n { expr {$n < 2 ? $n : [fibonacci [expr {$n - 1}]] + [fibonacci [expr {$n - 2}]]} }
        puts [fibonacci 15]
        puts [lsort -integer [lmap x {5 3 9 1} {expr {$x * $x}}]]
        puts [catch {expr {1 / 0}} message]:$message
        after 10 {set done 1}; vwait done
        exit 3";
    let file = write(directory.path(), "script.tcl", script);
    assert_eq!(check("tclsh", &[file.to_str().unwrap()]).finished.exit, Exit::Status(3));
}

#[test]
fn lua_runs_as_natively() {
    let script = "
        local s = 0 for i = 1, 300000 do s = (s * 31 + i) % 1000003 end print(s)
        local t = {} for i = 1, 3000 do t[i] = (i * 7919) % 3001 end table.sort(t) print(t[1], t[1500], t[3000])
        local c = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) print(c(), c(), c())
        print(pcall(function() error('oops') end), ('x'):rep(3, ','), #string.format('%q', 'a\\n'))
        os.exit(7)";
    assert_eq!(check("lua5.4", &["-e", script]).finished.exit, Exit::Status(7));
}

#[test]
fn guile_runs_as_natively() {
    let script = "(define (f n) (if (< n 2) n (+ (f (- n 1)) (f (- n 2)))))
        (display (f 18)) (newline)
        (display (call/cc (lambda (k) (for-each (lambda (x) (if (> x 3) (k x))) '(1 2 3 4 5)) 'none))) (newline)
        (display (catch 'oops (lambda () (throw 'oops 1)) (lambda (key . rest) (list key rest)))) (exit 5)";
    assert_eq!(check("guile", &["--no-auto-compile", "-c", script]).finished.exit, Exit::Status(5));
}

#[test]
fn ocaml_runs_as_natively() {
    let directory = scratch();
    let script = "let () = let s = ref 0 in for i = 1 to 200000 do s := (!s * 31 + i) mod 1000003 done; print_int !s
        let rec deep n = if n = 0 then 0 else 1 + deep (n - 1)
        let () = Printf.printf \" %d %d\\n\" (deep 10000) (List.length (List.sort compare (List.init 1000 (fun i -> i * 7919 mod 1009))))
        let () = try ignore (1 / (Sys.argv |> Array.length |> fun n -> n - n)) with Division_by_zero -> print_endline \"zero\"; exit 4\n";
    let file = write(directory.path(), "script.ml", script);
    assert_eq!(check("ocaml", &[file.to_str().unwrap()]).finished.exit, Exit::Status(4));
}

// ---------------------------------------------------------------------------------------------
// just-in-time compilers

#[test]
fn luajit_runs_as_natively() {
    let script = "
        local t = {} for i = 1, 60 do
            local f = loadstring('local s, a = 0, ... for i = 1, 5000 do s = (s * ' .. i .. ' + a + i) % 1000003 end return s')
            t[#t + 1] = f(i) end print(table.concat(t, ' '))
        local ffi = require('ffi') ffi.cdef('int abs(int);') local s = 0 for i = 1, 5000 do s = s + ffi.C.abs(-i) end print(s)
        print(pcall(function() local x = nil; return x.y end)) os.exit(3)";
    assert_eq!(check("luajit", &["-e", script]).finished.exit, Exit::Status(3));
}

#[test]
fn ruby_runs_as_natively() {
    let script = "def f(a, b) (a * 31 + b) % 1000003 end
        puts (1..30000).reduce { |a, b| f(a, b) }
        puts [3, 1, 2].sort.inspect, %w[a b c].each_with_index.map { |x, i| x * i }.join
        t = 4.times.map { |n| Thread.new { (1..1000).sum * n } }; puts t.map(&:value).inspect
        begin; raise 'oops'; rescue => e; puts e.message; end
        def deep(n) deep(n + 1) end
        begin; deep(0); rescue SystemStackError; puts 'deep'; end
        trap('USR1') { puts 'usr1' }; Process.kill('USR1', $$); sleep 0.01; puts `echo child`; exit 6";
    for mode in ["--disable-yjit", "--yjit"] {
        assert_eq!(check("ruby", &[mode, "--disable-gems", "-e", script]).finished.exit, Exit::Status(6));
    }
}

#[test]
fn php_runs_as_natively() {
    let script = "function f($a, $b) { return ($a * 31 + $b) % 1000003; }
        $s = 0; for ($i = 0; $i < 100000; $i++) $s = f($s, $i); echo $s, \"\\n\";
        $a = range(1, 1000); usort($a, fn($x, $y) => $x * 7919 % 1009 <=> $y * 7919 % 1009); echo md5(json_encode($a)), \"\\n\";
        echo preg_replace('/(\\d+)-([a-z]+)/', '$2:$1', '12-ab 34-cd'), \"\\n\";
        try { intdiv(1, 0); } catch (DivisionByZeroError $e) { echo get_class($e), \"\\n\"; } exit(5);";
    assert_eq!(check("php", &["-r", script]).finished.exit, Exit::Status(5));
    let jit =
        ["-d", "opcache.enable_cli=1", "-d", "opcache.jit_buffer_size=16M", "-d", "opcache.jit=1255", "-r", script];
    assert_eq!(check("php", &jit).finished.exit, Exit::Status(5));
}

#[test]
fn node_runs_as_natively() {
    let directory = scratch();
    let file = write(directory.path(), "mixture.js", include_str!("../programs/mixture.js"));
    let recorded = Call::new(tool::required("node")).arg(&file).check();
    assert_eq!(recorded.finished.exit, Exit::Status(6));
}

#[test]
fn node_without_its_compiler_runs_as_natively() {
    let script =
        "let t = 0; for (let i = 0; i < 1e5; i++) t = (t * 31 + i) % 1000003; console.log(t, [3, 1, 2].sort())";
    check("node", &["--jitless", "-e", script]);
}

/// Compiles the class once; the Java machine then runs it with these options.
fn java(options: &[&str]) {
    let directory = scratch();
    write(directory.path(), "Main.java", include_str!("../programs/Main.java"));
    succeed(Command::new(tool::required("javac")).arg("Main.java").current_dir(directory.path()));
    let java = Call::new(tool::required("java")).args(["-Xmx64m"]).args(options).arg("Main");
    let recorded = java.directory(directory.path()).check();
    assert_eq!(recorded.finished.exit, Exit::Status(8));
}

/// Much new code: a compiler that is compiled as it runs.
fn javac() {
    let directory = scratch();
    write(directory.path(), "Main.java", include_str!("../programs/Main.java"));
    let recorded = Call::new(tool::required("javac")).arg("Main.java").directory(directory.path()).check();
    assert_eq!(recorded.finished.exit, Exit::Status(0));
}

#[test]
fn java_interpreted_runs_as_natively() {
    java(&["-Xint"]);
}

#[test]
fn java_compiled_runs_as_natively() {
    java(&[]);
    if is_soak() {
        java(&["-XX:-TieredCompilation"]);
        java(&["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]);
        java(&["-XX:+UseParallelGC"]);
        java(&["-Xcomp"]);
        javac();
    }
}

// --------------------------------------------------------------------------------------- compiled

#[test]
fn go_with_goroutines_runs_as_natively() {
    const GO: &str = include_str!("../programs/goroutines.go");
    let directory = scratch();
    let source = write(directory.path(), "main.go", GO);
    let executable = directory.path().join("main");
    let mut build = Command::new(tool::required("go"));
    build.arg("build").arg("-o").arg(&executable).arg(source).current_dir(directory.path());
    build.env("GOCACHE", directory.path().join("cache")).env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off");
    build.env("GOTOOLCHAIN", "local");
    succeed(&mut build);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.finished.exit, Exit::Status(4));
    assert!(recorded.trace.threads().len() > 2);
}

#[test]
fn rust_with_threads_and_panics_runs_as_natively() {
    const RUST: &str = include_str!("../programs/panics.rs");
    let directory = scratch();
    let executable = compile(directory.path(), "main.rs", RUST, &["rustc", "-O", "--edition", "2021"]);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.finished.exit, Exit::Status(11));
    assert_eq!(recorded.trace.threads().len(), 13);
}

#[test]
fn cpp_with_exceptions_runs_as_natively() {
    const CPP: &str = include_str!("../programs/exceptions.cc");
    let directory = scratch();
    let executable = compile(directory.path(), "main.cc", CPP, &["g++", "-O2", "-pthread"]);
    let recorded = Call::new(executable).check();
    assert_eq!(recorded.finished.exit, Exit::Signal(libc::SIGABRT));
    assert_eq!(recorded.trace.threads().len(), 7);
}
