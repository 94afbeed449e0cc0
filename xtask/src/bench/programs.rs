//! The programs of the benchmark, with arguments for about `scale` seconds.
//!
//! Inputs are generated, and the same in every run. Five are common programs (a compressor, two
//! interpreters, the compiler proper, and their libraries), the others come from `workloads/`.

use std::path::Path;
use std::process::{Command, Stdio};

/// One program of the benchmark.
pub struct Program {
    pub name: &'static str,
    /// The behaviour that it stresses.
    pub what: &'static str,
    prepare: fn(&Path, f64) -> Result<Vec<String>, String>,
}

impl Program {
    /// Prepares input for a run of about `scale` seconds in `directory` and returns the command.
    pub fn command(&self, directory: &Path, scale: f64) -> Result<Vec<String>, String> {
        let directory = directory.join(format!("{}-{scale}", self.name));
        std::fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        (self.prepare)(&directory, scale)
    }
}

pub const PROGRAMS: &[Program] = &[
    Program { name: "xz", what: "compressor: tight loops, hard-to-predict branches", prepare: xz },
    Program { name: "python3", what: "interpreter: indirect jumps", prepare: python },
    Program { name: "cc1", what: "compiler proper, -O2: much code, each piece executed rarely", prepare: cc1 },
    Program { name: "perl", what: "interpreter: hashes, strings, regular expressions", prepare: perl },
    Program { name: "matrix", what: "matrix product, 2 threads: long blocks", prepare: matrix },
    Program {
        name: "sort",
        what: "quicksort and merge sort with a callback: indirect calls, unpredictable branches",
        prepare: sort,
    },
    Program { name: "fft", what: "fast Fourier transform, 2 threads", prepare: fft },
    Program { name: "hash", what: "SHA-256 and SipHash: long straight code", prepare: hash },
    Program { name: "parser", what: "JSON and arithmetic by recursive descent: calls and returns", prepare: parser },
];

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn file(directory: &Path, name: &str, content: &[u8]) -> Result<String, String> {
    let path = directory.join(name);
    std::fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Returns the output of a command, or why there is none.
fn output_of(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(output) => Err(format!("{program} ended with {}", output.status)),
        Err(_) => Err("not installed".into()),
    }
}

fn xz(directory: &Path, scale: f64) -> Result<Vec<String>, String> {
    output_of("xz", &["--version"])?;
    let input = file(directory, "text", &text((2.6e6 * scale) as usize))?;
    Ok(words(&["xz", "-6", "-T1", "-c", &input]))
}

fn python(directory: &Path, scale: f64) -> Result<Vec<String>, String> {
    // The program in PATH may be a script that starts the interpreter.
    let interpreter = output_of("python3", &["-c", "import sys; print(sys.executable)"])?;
    let script = file(directory, "loop.py", PYTHON.as_bytes())?;
    Ok(words(&[&interpreter, "-S", "-E", &script, &((200.0 * scale).ceil() as u32).to_string()]))
}

const PYTHON: &str = "\
import sys


class Account:
    def __init__(self, name):
        self.name, self.total = name, 0

    def add(self, amount):
        self.total = (self.total + amount) % 1000003


def sieve(limit):
    marks = [True] * limit
    for number in range(2, int(limit ** 0.5) + 1):
        if marks[number]:
            for multiple in range(number * number, limit, number):
                marks[multiple] = False
    return sum(marks[2:])


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


total = 0
for turn in range(int(sys.argv[1])):
    accounts = {i: Account(str(i)) for i in range(200)}
    for i in range(20000):
        accounts[i * 7919 % 200].add(i ^ turn)
    total += sieve(20000) + fibonacci(17) + sum(account.total for account in accounts.values())
    total += len(''.join(sorted(account.name for account in accounts.values())))
print(total)
";

fn perl(directory: &Path, scale: f64) -> Result<Vec<String>, String> {
    let interpreter = output_of("perl", &["-e", "print $^X"])?;
    let script = file(directory, "loop.pl", PERL.as_bytes())?;
    Ok(words(&[&interpreter, &script, &((110.0 * scale).ceil() as u32).to_string()]))
}

const PERL: &str = r#"use strict;
use warnings;

my ($turns) = @ARGV;
my %count;
my $state = 1;
my $matches = 0;
for my $turn (1 .. $turns) {
    my @words;
    for my $i (1 .. 10000) {
        $state = ($state * 1103515245 + 12345) % 2147483648;
        push @words, 'w' . ($state >> 8) % 997;
    }
    $count{$_}++ for @words;
    my $text = join ' ', @words;
    $matches++ while $text =~ /\bw(\d)\1\d?\b/g;
    $text =~ s/w(\d+)/<$1>/g;
    my @sorted = sort { $a cmp $b } @words;
    $matches += length($text) + scalar(grep { $_ eq $sorted[0] } @words);
}
my $sum = 0;
$sum += $count{$_} * length($_) for sort keys %count;
print "$matches $sum\n";
"#;

fn cc1(directory: &Path, scale: f64) -> Result<Vec<String>, String> {
    let compiler = output_of("gcc", &["-print-prog-name=cc1"])?;
    if !Path::new(&compiler).is_absolute() {
        return Err("not installed".into());
    }
    let source = file(directory, "program.c", c_source((100.0 * scale) as usize).as_bytes())?;
    let output = directory.join("program.s");
    Ok(words(&[&compiler, "-quiet", "-O2", &source, "-o", &output.to_string_lossy()]))
}

/// A C program of `count` functions that differ in shape, so that the compiler cannot fold them
/// into one.
fn c_source(count: usize) -> String {
    let mut random = Random(7);
    let mut source = String::from("struct item { long key, value; struct item *next; };\n");
    source.push_str("extern long look(const char *, long);\n");
    for number in 0..count {
        let [a, b, c] = [random.below(97) + 3, random.below(31) + 1, random.below(7) + 2];
        let callee =
            if number > 0 { format!("work{}(n - {b}, items, table)", random.below(number as u64)) } else { "n".into() };
        source.push_str(&format!(
            "long work{number}(long n, struct item *items, long *table)
{{
    long sum = {a}, i;
    for (struct item *item = items; item; item = item->next) {{
        if (item->key % {a} == {b})
            sum += item->value * {c};
        else if (item->key > n && item->value != {a})
            sum ^= table[item->key & {b}];
        else
            table[item->value & 31] -= sum >> {c};
    }}
    switch (n % {c}) {{
    case 0: sum += look(\"{number}\", n); break;
    case 1: sum *= {b}; /* fall through */
    case 2: sum -= table[n & 7]; break;
    default: for (i = 0; i < n; i++) table[i] = table[i] * {a} + i / {b};
    }}
    return n > {a} ? {callee} + sum : sum;
}}
"
        ));
    }
    source
}

pub fn workload(name: &str, arguments: &[String]) -> Result<Vec<String>, String> {
    let path = workloads::build(name, workloads::Variant::Pie).map_err(|error| error.to_string())?;
    let mut command = vec![path.to_string_lossy().into_owned()];
    command.extend_from_slice(arguments);
    Ok(command)
}

fn matrix(_: &Path, scale: f64) -> Result<Vec<String>, String> {
    let side = 1400.0 * scale.cbrt();
    workload("matmul", &["2".into(), side.round().to_string()])
}

/// The size is half the logarithm of the number of points: every step takes four times as long, and
/// 11 takes a third of a second. 12 would need a gigabyte.
fn fft(_: &Path, scale: f64) -> Result<Vec<String>, String> {
    let size = if scale >= 0.3 { "11" } else { "9" };
    workload("fft", &["2".into(), size.into()])
}

fn sort(_: &Path, scale: f64) -> Result<Vec<String>, String> {
    workload("sort", &[(2_000_000.0 * scale).round().to_string()])
}

fn hash(_: &Path, scale: f64) -> Result<Vec<String>, String> {
    workload("hash", &[(1400.0 * scale).round().to_string()])
}

fn parser(_: &Path, scale: f64) -> Result<Vec<String>, String> {
    workload("parser", &[(370_000.0 * scale).round().to_string()])
}

/// Text that is about as compressible as prose: words of a vocabulary, the frequent ones short.
fn text(length: usize) -> Vec<u8> {
    let mut random = Random(42);
    let vocabulary: Vec<Vec<u8>> =
        (0..4000).map(|rank: u64| word(&mut random, 2 + (rank + 2).ilog2() as usize / 2)).collect();
    let mut text = Vec::with_capacity(length + 32);
    while text.len() < length {
        let rank = random.below(4000) * random.below(4000) / 4000 * random.below(4000) / 4000;
        text.extend_from_slice(&vocabulary[rank as usize]);
        text.push(if random.below(12) == 0 { b'\n' } else { b' ' });
    }
    text.truncate(length);
    text
}

fn word(random: &mut Random, length: usize) -> Vec<u8> {
    (0..length + random.below(4) as usize)
        .map(|_| b"eeeeetttaaaooiinnsshhrrdlucmwfgypbvk"[random.below(36) as usize])
        .collect()
}

/// A linear congruential generator: the same numbers everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_input_is_always_the_same() {
        assert_eq!(text(1000), text(1000));
        assert_eq!(text(1000).len(), 1000);
        assert_eq!(c_source(3), c_source(3));
        assert!(c_source(3).contains("work2"));
    }

    #[test]
    fn at_least_eight_programs() {
        assert!(PROGRAMS.len() >= 8);
    }
}
