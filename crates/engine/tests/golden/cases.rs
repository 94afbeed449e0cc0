//! The superblocks that the golden text shows.

use entity::AppPc;
use trackway_engine::cache_pc::CachePc;
use trackway_engine::translate::Order;

/// Where application code and cache lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Both in the low two gigabytes: a return address is an immediate.
    Low,
    /// Both high up, near each other: a return address is a literal.
    High,
    /// High up and so far apart that operands beyond the application's code are out of reach.
    Far,
}

impl Layout {
    pub fn application(self) -> AppPc {
        AppPc::new(match self {
            Self::Low => 0x40_0000,
            Self::High | Self::Far => 0x5555_5000_0000,
        })
    }

    pub fn cache(self) -> CachePc {
        CachePc::new(match self {
            Self::Low => 0x1000_0000,
            Self::High => 0x5555_4000_0000,
            Self::Far => 0x5554_e000_0000,
        })
    }
}

pub struct Block {
    /// From the application's start.
    pub offset: u64,
    pub code: Vec<u8>,
    pub next: Option<u64>,
    pub is_entry: bool,
}

pub struct Case {
    pub name: &'static str,
    pub layout: Layout,
    pub blocks: Vec<Block>,
    pub inline_indirect: bool,
    pub order: Order,
    pub by_pext: bool,
    /// The table of indirect targets is not below 2 GiB.
    pub high_table: bool,
    /// Code that may change is compared before it is executed.
    pub check: bool,
    /// What is recorded beside the path.
    pub data: u32,
}

impl Case {
    fn at(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    fn ordered(mut self) -> Self {
        self.order = Order::EveryTime;
        self
    }

    fn ordered_by_contention(mut self) -> Self {
        self.order = Order::Contention;
        self
    }

    fn guessing(mut self) -> Self {
        self.inline_indirect = true;
        self
    }

    fn with_addresses(mut self) -> Self {
        self.data = wire::DATA_ADDRESSES;
        self
    }

    fn with_values(mut self) -> Self {
        self.data = wire::DATA_VALUES;
        self
    }

    fn checked(mut self) -> Self {
        self.check = true;
        self
    }

    fn without_pext(mut self) -> Self {
        self.by_pext = false;
        self
    }

    fn with_high_table(mut self) -> Self {
        self.high_table = true;
        self
    }

    /// The block that was given last is an entry whose stack pointer is recorded.
    fn entered(mut self) -> Self {
        self.blocks.last_mut().unwrap().is_entry = true;
        self
    }

    /// The superblock goes on at `offset` with this code.
    fn then(mut self, offset: u64, code: &str) -> Self {
        self.blocks.last_mut().unwrap().next = Some(offset);
        self.blocks.push(Block { offset, code: bytes(code), next: None, is_entry: false });
        self
    }
}

fn bytes(text: &str) -> Vec<u8> {
    text.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// A superblock of one block, to which more can be added.
fn case(name: &'static str, code: &str) -> Case {
    let blocks = vec![Block { offset: 0, code: bytes(code), next: None, is_entry: false }];
    Case {
        name,
        layout: Layout::Low,
        blocks,
        inline_indirect: false,
        order: Order::None,
        by_pext: true,
        high_table: false,
        check: false,
        data: wire::DATA_NONE,
    }
}

pub fn all() -> Vec<Case> {
    let groups = [copies(), r15(), direct(), indirect(), returns(), odd(), superblocks(), data(), checks(), order()];
    groups.into_iter().flatten().collect()
}

fn order() -> Vec<Case> {
    let cases = vec![
        case("compare and exchange", "f0 0f b1 17 eb 10"),
        case("compare and exchange of eight bytes with rcx and r15", "f0 49 0f b1 0f eb 10"),
        case("exchange with the register of its address", "48 87 00 eb 10"),
        case("exchange of r15 with values", "4c 87 38 eb 10").with_values(),
        case("exchange and add of two bytes, out of reach", "66 f0 0f c1 0d 00 00 20 00 eb 10").at(Layout::Far),
        case("exchange and add relative to fs", "f0 64 0f c1 0c 25 08 00 00 00 eb 10"),
        case("locked increment", "f0 ff 07 eb 10"),
        case("locked decrement of a byte, out of reach", "f0 fe 0d 00 00 20 00 eb 10").at(Layout::Far),
        case("locked subtraction with values", "f0 48 29 37 eb 10").with_values(),
        case("locked addition with addresses", "f0 83 47 08 05 eb 10").with_addresses(),
        case("fence on the stack", "f0 48 83 0c 24 00 eb 10"),
        case("memory fence", "0f ae f0 eb 10"),
        case("locked and", "f0 21 37 eb 10"),
        case("locked bit test with a register", "f0 0f ab 17 eb 10"),
        case("compare and exchange of sixteen bytes", "f0 48 0f c7 0f eb 10"),
        case("a superblock goes on through a lock", "f0 0f b1 17 75 10").then(4, "75 10").then(6, "eb 10"),
    ];
    cases.into_iter().map(Case::ordered_by_contention).collect()
}

fn checks() -> Vec<Case> {
    vec![
        case("code that may change", "48 01 d8 48 01 d8 48 01 d8 eb 10").checked(),
        case("code that may change, out of reach, short", "90 eb 10").at(Layout::Far).checked(),
        case("code that may change ends after a store", "48 89 08 90 eb 10").checked(),
        case("code that may change, in a superblock, with r15", "49 ff c7 74 10")
            .then(5, "e8 00 10 00 00")
            .then(0x100a, "c3")
            .checked(),
        case("code that may change, with addresses", "48 8b 08 eb 10")
            .then(0x15, "48 8b 10 c3")
            .checked()
            .with_addresses(),
    ]
}

fn copies() -> Vec<Case> {
    vec![
        case("plain instructions are copied", "48 01 d8 48 89 44 24 f8 f3 a4 66 0f ef c0 eb 10"),
        case("rip-relative, near", "48 8b 05 00 10 00 00 c7 05 00 20 00 00 78 56 34 12 eb 10"),
        case("rip-relative, far", "48 8b 05 00 00 00 40 eb 10").at(Layout::Far),
        case(
            "rip-relative, far, with an immediate, while r15 is the application's",
            "4c 01 f8 c7 05 00 00 00 40 01 00 00 00 eb 10",
        )
        .at(Layout::Far),
        case("rip-relative, far, lea", "48 8d 35 00 00 00 40 eb 10").at(Layout::Far),
        case("rip-relative, far, cmpxchg16b leaves few registers", "48 0f c7 0d 00 00 00 40 eb 10").at(Layout::Far),
        case("rip-relative, far, AVX", "c5 fe 6f 0d 00 00 00 40 eb 10").at(Layout::Far),
        case("fs is the application's", "64 48 8b 04 25 28 00 00 00 eb 10"),
    ]
}

fn r15() -> Vec<Case> {
    vec![
        case("r15 read", "49 89 c7 48 01 c8 eb 10"),
        case("r15 as a base, 32, 16 and 8 bits", "41 8b 07 45 89 ff 66 41 ff c7 41 fe c7 eb 10"),
        case("r15 as an index, then a conditional branch", "4a 8b 04 f8 74 10"),
        case("r15 in the middle of a block", "90 41 57 90 41 5f 90 eb 10"),
    ]
}

fn direct() -> Vec<Case> {
    vec![
        case("jcc", "48 85 c0 74 10"),
        case("jcc, long, with a hint", "3e 0f 85 00 10 00 00"),
        case("loop", "e2 fe"),
        case("jecxz", "67 e3 20"),
        case("jmp", "e9 00 10 00 00"),
        case("call, return address in 32 bits", "e8 00 10 00 00"),
        case("call, return address in 64 bits", "e8 00 10 00 00").at(Layout::High),
        case("call, r15 in use", "49 ff c7 e8 00 10 00 00"),
    ]
}

fn indirect() -> Vec<Case> {
    vec![
        case("jmp rax", "ff e0"),
        case("jmp rax, without BMI2", "ff e0").without_pext(),
        case("jmp rax, with a table beyond 2 GiB", "ff e0").with_high_table(),
        case("jmp rax, with a table beyond 2 GiB, without BMI2", "ff e0").with_high_table().without_pext(),
        case("jmp r15", "41 ff e7"),
        case("jmp [rax + rcx * 8 + 16]", "ff 64 c8 10"),
        case("jmp [rsp + 8]", "ff 64 24 08"),
        case("jmp [rip + displacement], near", "ff 25 00 10 00 00"),
        case("jmp [rip + displacement], far", "ff 25 00 00 00 40").at(Layout::Far),
        case("jmp fs:[40]", "64 ff 24 25 28 00 00 00"),
        case("gs is the application's", "65 48 8b 04 25 30 00 00 00 65 48 89 44 b7 08 65 01 44 24 10 eb 10"),
        case("gs and addresses of 32 bits", "65 67 8b 42 20 65 48 8b 05 00 10 00 00 eb 10"),
        case("gs and r15", "65 4d 8b 7f 08 eb 10"),
        case("a masked move relative to gs", "65 66 0f f7 c1 eb 10"),
        case("jmp gs:[rcx + rdx * 8]", "65 ff 24 d1"),
        case("wrgsbase", "90 f3 48 0f ae d8 90 eb 10"),
        case("a string relative to gs", "65 f3 a4 eb 10"),
        case("jmp [r15 + r15 * 8], notrack", "3e 43 ff 24 ff"),
        case("bnd jmp rdx", "f2 ff e2"),
        case("call rcx", "ff d1"),
        case("call [rsp + 16], return address in 64 bits", "ff 54 24 10").at(Layout::High),
        case("call [rip + displacement], far", "ff 15 00 00 00 40").at(Layout::Far),
        case("call [r15]", "41 ff 17"),
    ]
}

fn returns() -> Vec<Case> {
    vec![
        case("ret", "c3"),
        case("rep ret", "f3 c3"),
        case("ret 16", "c2 10 00"),
        case("ret, r15 in use", "4d 31 ff c3"),
    ]
}

fn odd() -> Vec<Case> {
    vec![
        case("syscall", "b8 27 00 00 00 0f 05"),
        case("syscall, r15 in use", "49 89 ff 0f 05"),
        case("int3", "90 cc"),
        case("ud2", "0f 0b"),
        case("hlt", "f4"),
        case("far return becomes ud2", "cb"),
        case("invalid instruction becomes ud2", "06 90 90 90 90 90 90 90 90 90 90 90 90 90 90 c3"),
        case("locked instruction, one thread", "f0 48 ff 00 eb 10"),
        case("locked instruction, several threads", "f0 48 ff 00 eb 10").ordered(),
        case("exchange with memory, several threads, r15 in use", "4c 87 38 eb 10").ordered(),
        case("cut in mid-instruction", "90 48 8b 05 00"),
        case("the first instruction cannot be read", "48 8b 05 00"),
    ]
}

fn superblocks() -> Vec<Case> {
    vec![
        case("superblock: not taken, then taken", "74 10").then(2, "75 20").then(0x24, "c3"),
        case("superblock: branch with r15 in use", "49 ff cf 74 10").then(5, "90 eb 10"),
        case("superblock: jmp and call", "eb 0e").then(0x10, "e8 0b 00 00 00").then(0x20, "eb 10"),
        case("superblock: call and its return", "e8 0b 00 00 00").then(0x10, "90 c3").then(5, "eb 10"),
        case("superblock: call and its return, 64 bits", "e8 0b 00 00 00")
            .then(0x10, "c2 08 00")
            .then(5, "eb 10")
            .at(Layout::High),
        case("superblock: a return without its call ends it", "c3").then(0x10, "eb 10"),
        case("superblock: a return without its call, guessed", "c3").then(0x10, "eb 10").guessing(),
        case("superblock: indirect jump, guessed", "ff e0").then(0x10, "eb 10").guessing(),
        case("superblock: indirect call through r15, guessed", "41 ff 17")
            .then(0x10, "4c 89 f8 c3")
            .then(3, "eb 10")
            .guessing(),
        case("superblock: indirect jump is not guessed", "ff e0").then(0x10, "eb 10"),
        case("superblock: loop unrolled twice", "ff c9 75 fc").then(0, "ff c9 75 fc").then(0, "ff c9 75 fc"),
        case("superblock: loop instruction ends it", "e2 fe").then(0, "e2 fe"),
        case("superblock: through a cut", "90 90").then(2, "eb 10"),
        case("superblock: system call ends it", "0f 05").then(2, "eb 10"),
        case("superblock: locked instruction ends it when there are threads", "f0 ff 00 eb 00")
            .then(5, "eb 10")
            .ordered(),
    ]
}

/// What is recorded beside the path.
fn data() -> Vec<Case> {
    vec![
        case("registers are stored once", "48 8b 07 48 83 c7 08 48 8b 57 10 48 89 14 c7 8b 44 24 08 eb 10")
            .with_addresses(),
        case("a stack frame takes one register", "55 48 89 e5 48 83 ec 20 89 45 fc c9 c3").with_addresses(),
        case("constant addresses take none", "8b 05 00 10 00 00 c6 05 00 20 00 00 05 eb 10").with_addresses(),
        case("r15 as a base and an index", "43 8b 04 3f 4c 89 7c 24 08 eb 10").with_addresses(),
        case("a repeated string", "f3 48 a5 48 8b 06 eb 10").with_addresses(),
        case("vectors of indices and masks", "c4 e2 6d 90 04 8f c4 e2 75 2c 07 eb 10").with_addresses(),
        case("data in a superblock with a side exit", "48 8b 03 74 10")
            .then(5, "48 8b 43 08 48 8b 0c c8 eb fe")
            .with_addresses(),
        case("calls and returns", "e8 fb 00 00 00").then(0x100, "48 8b 03 c3").with_values(),
        case("indirect through memory", "ff 53 08").with_values(),
        case("moves", "8b 03 44 88 3b 0f b7 43 02 0f 11 43 10 c7 43 20 ff ff ff ff 8a 63 01 eb 10").with_values(),
        case("arithmetic with a memory operand", "48 03 03 3b 43 08 f2 0f 58 43 10 66 0f fc 43 20 eb 10").with_values(),
        case("read, change, write", "48 01 03 ff 43 08 f6 53 10 eb 10").with_values(),
        case("locked", "f0 48 01 03 f0 0f b1 4b 08 87 43 10 f0 48 0f c7 4b 20 eb 10").with_values(),
        case("locked, with a constant, in reach", "f0 83 05 00 10 00 00 01 eb 10").with_values(),
        case("stack", "ff 33 8f 44 24 08 9c 9d 6a 05 5c eb 10").with_values(),
        case("only the engine can", "90 f3 a4 eb 10").with_values(),
        case("a block of its own for the engine", "f3 a4 eb 10").with_values(),
        case("through a copy", "dd 03 dd 5b 08 0f 16 43 10 0f 94 43 18 eb 10").with_values(),
        case("gs is the application's, with addresses", "65 48 8b 04 25 30 00 00 00 65 ff 14 25 b0 00 00 00")
            .with_addresses(),
        case("gs is the application's, with values", "65 48 8b 04 25 30 00 00 00 65 01 44 b7 08 eb 10").with_values(),
        case("fs is the application's, with values", "64 80 3c 25 c8 ff ff ff 00 64 48 03 00 eb 10").with_values(),
        case("the stack pointer at an entry", "55 48 89 e5 48 83 ec 20 89 45 fc c9 c3").entered().with_addresses(),
        case("entries in a superblock: the stack pointer once", "e8 0b 00 00 00")
            .then(0x10, "48 8b 44 24 10 c3")
            .entered()
            .then(5, "eb 10")
            .with_addresses(),
        case("out of reach: without the value", "48 03 05 00 00 00 40 eb 10").at(Layout::Far).with_values(),
    ]
}
