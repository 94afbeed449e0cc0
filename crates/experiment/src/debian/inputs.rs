//! Generated inputs: neither random nor regular, and the same in every run.

use std::fmt::Write;

/// A generator of numbers without a visible pattern: SplitMix.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Returns small numbers more often than large ones, like the frequencies of words.
    fn skewed(&mut self, limit: usize) -> usize {
        let widest = 1 + self.below(limit);
        let wide = 1 + self.below(widest);
        self.below(wide)
    }

    fn one_of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Words of an invented language, and sentences of them.
struct Language {
    numbers: Numbers,
    words: Vec<String>,
}

impl Language {
    fn new(seed: u64, count: usize) -> Self {
        let mut numbers = Numbers(seed);
        let words = (0..count).map(|_| invented_word(&mut numbers)).collect();
        Self { numbers, words }
    }

    fn word(&mut self) -> &str {
        let number = self.numbers.skewed(self.words.len());
        &self.words[number]
    }

    fn words(&mut self, count: usize) -> String {
        (0..count).map(|_| self.word().to_owned()).collect::<Vec<_>>().join(" ")
    }

    fn sentence(&mut self) -> String {
        let count = 4 + self.numbers.below(12);
        let sentence = self.words(count);
        let (first, rest) = sentence.split_at(1);
        let end = self.numbers.one_of(&[".", ".", ".", "?", "!", ";"]);
        format!("{}{rest}{end}", first.to_uppercase())
    }
}

fn invented_word(numbers: &mut Numbers) -> String {
    const BEGINNINGS: [&str; 16] = ["b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "w"];
    const MIDDLES: [&str; 8] = ["a", "e", "i", "o", "u", "ea", "ou", "y"];
    const ENDS: [&str; 8] = ["", "", "n", "r", "s", "t", "nd", "l"];
    let syllables = 1 + numbers.skewed(4);
    let syllable = |_| [numbers.one_of(&BEGINNINGS), numbers.one_of(&MIDDLES), numbers.one_of(&ENDS)].concat();
    (0..syllables).map(syllable).collect()
}

/// Returns lines of sentences with about this number of bytes.
pub fn text(bytes: usize) -> Vec<u8> {
    let mut language = Language::new(1, 4000);
    let mut text = String::new();
    while text.len() < bytes {
        text += &language.sentence();
        text.push(if language.numbers.below(3) == 0 { '\n' } else { ' ' });
    }
    text.into_bytes()
}

/// Returns rows of a key, a group, two numbers and a few words.
pub fn table(rows: usize) -> Vec<u8> {
    let mut language = Language::new(2, 1000);
    let mut table = String::new();
    for row in 0..rows {
        let group = language.numbers.skewed(40);
        let (first, second) = (language.numbers.below(1000), language.numbers.skewed(1_000_000));
        let count = 1 + language.numbers.below(3);
        let words = language.words(count);
        writeln!(table, "k{row:06} group{group} {first} {second} {words}").expect("a string takes everything");
    }
    table.into_bytes()
}

/// Returns a list of objects as JSON.
pub fn people(count: usize) -> Vec<u8> {
    let mut language = Language::new(3, 500);
    let person = |_| {
        let (name, age, team) = (language.words(2), language.numbers.below(90), language.numbers.skewed(12));
        let tags: Vec<String> = (0..language.numbers.below(5)).map(|_| format!("\"{}\"", language.word())).collect();
        let (tags, note) = (tags.join(", "), language.sentence().to_lowercase());
        format!(
            "{{\"name\": \"{name}\", \"age\": {age}, \"team\": \"t{team}\", \"tags\": [{tags}], \"note\": \"{note}\"}}"
        )
    };
    let people: Vec<String> = (0..count).map(person).collect();
    format!("[\n{}\n]\n", people.join(",\n")).into_bytes()
}

/// Returns a picture with soft areas, edges and a little noise, as PPM.
pub fn picture(width: usize, height: usize) -> Vec<u8> {
    let mut numbers = Numbers(4);
    let mut bytes = format!("P6\n{width} {height}\n255\n").into_bytes();
    for y in 0..height {
        for x in 0..width {
            let light = brightness(x, y, 0) + numbers.below(8);
            bytes.extend([light, light * 2 / 3 + y * 80 / height, 215 - light + x * 40 / width].map(byte));
        }
    }
    bytes
}

fn byte(value: usize) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

/// Returns a point of waves behind a tilted grid of tiles, which move with time.
fn brightness(x: usize, y: usize, time: usize) -> usize {
    let wave = ((x + 2 * y + 3 * time) % 256).abs_diff(128);
    let (across, down) = ((x + y / 4 + 2 * time) % 48, (y + x / 6 + time) % 40);
    if across < 20 && down < 16 { 90 + 5 * across + down } else { wave }
}

/// Returns the frames of a moving picture, as YUV4MPEG2.
pub fn video(width: usize, height: usize, frames: usize) -> Vec<u8> {
    let mut numbers = Numbers(5);
    let mut bytes = format!("YUV4MPEG2 W{width} H{height} F25:1 Ip A1:1 C420jpeg\n").into_bytes();
    for time in 0..frames {
        bytes.extend(b"FRAME\n");
        for place in 0..width * height {
            bytes.push(byte(brightness(place % width, place / width, time) + numbers.below(6)));
        }
        let halves = |place: usize| (place % (width / 2) * 2, place / (width / 2) * 2);
        for plane in 0..2 {
            let color = |(x, y)| byte(64 + brightness(x, y, time * (plane + 1)) / 2);
            bytes.extend((0..width * height / 4).map(|place| color(halves(place))));
        }
    }
    bytes
}

/// Returns C functions with loops, branches, tables and records that call each other, all
/// different.
pub fn c_program(functions: usize) -> Vec<u8> {
    let mut numbers = Numbers(6);
    let mut source = String::from(
        "struct node { struct node *left, *right; int key; unsigned count; double weight; char name[16]; };\n\
         extern int compare(const char *one, const char *other);\n\
         static unsigned seen[256];\n\
         int f0(struct node *n, int a, int b) { return n ? n->key + a : b; }\n",
    );
    for number in 1..=functions {
        source += &c_function(&mut numbers, number);
    }
    writeln!(source, "int run(struct node *n, int a) {{ return f{functions}(n, a, seen[a & 255]); }}")
        .expect("a string takes everything");
    source.into_bytes()
}

fn c_function(numbers: &mut Numbers, number: usize) -> String {
    let body: String = (0..3 + numbers.below(3)).map(|_| c_statement(numbers, number, 1)).collect();
    format!("int f{number}(struct node *n, int a, int b) {{\nint i, s = a ^ {number};\n{body}return s + b;\n}}\n")
}

fn c_statement(numbers: &mut Numbers, number: usize, depth: usize) -> String {
    let (value, other) = (c_value(numbers), c_value(numbers));
    let constant = 1 + numbers.below(100);
    let mut inner = |count: usize| -> String {
        (0..count).map(|_| if depth == 0 { String::new() } else { c_statement(numbers, number, depth - 1) }).collect()
    };
    match constant % 8 {
        0 => format!(
            "if ({value} > {other}) {{ s += {constant};\n{}}} else {{ s ^= {other};\n{}}}\n",
            inner(2),
            inner(1)
        ),
        1 => format!(
            "for (i = 0; i < {other} + {constant}; i++) {{ seen[(i * 7 + s) & 255] += {value}; s += seen[i & 255]; }}\n"
        ),
        2 => format!("while (n && n->key != {value}) {{ n = n->key < {other} ? n->right : n->left; s++; }}\n"),
        3 => format!(
            "switch ({value} & 7) {{ case 0: s -= {other}; break; case 1: s <<= 1; case 3: {} break; \
             case 6: s /= {constant}; break; default: s = -s; }}\n",
            inner(1)
        ),
        4 => format!("s = f{}(n ? n->left : n, s, {value} % {constant});\n", numbers.below(number)),
        5 => format!(
            "if (n) {{ n->weight = n->weight * {constant}.5 + s; n->count += {value}; s += (int)n->weight; }}\n"
        ),
        6 => format!(
            "if (n && compare(n->name, \"w{constant}\") < 0) {{ n->name[{}] = (char)s;\n{}}}\n",
            constant % 16,
            inner(2)
        ),
        _ => format!("s = ({value} * {constant} + {other}) ^ (s >> {});\n", constant % 13),
    }
}

fn c_value(numbers: &mut Numbers) -> &'static str {
    numbers.one_of(&["a", "b", "s", "(a + s)", "(b - a)", "(int)seen[s & 255]", "(n ? n->key : a)", "(s & b)"])
}
