# Faults in every class of memory instruction: the page is not there, or cannot be written. The handler finds registers and
# flags as they were before the instruction, makes the page accessible and returns, so that the instruction is repeated.
        .include "memory.inc"
        .set    NONE, 0
        .set    READ, 1
        .set    CLEAR, 0x202            # no flags
        .set    ALL, 0xad7              # carry, parity, adjust, zero, sign, overflow

# Every register gets a value; rbx is the page, rsi and rdi lie on it, rsp is a stack that works.
        .macro  before protection
        lea     rdi, [rip + page]
        mov     edx, \protection
        call    protect
        lea     rbx, [rip + page]
        lea     rsi, [rip + page + 0x100]
        lea     rdi, [rip + page + 0x200]
        mov     rax, 0x0011223344556677
        mov     ecx, 3
        mov     rdx, 0x8899aabbccddeeff
        lea     rbp, [rip + page + 0x300]
        .irp    number, 8, 9, 10, 11, 12, 13, 14, 15
        mov     r\number, 0x1111111111111111 * (\number - 7)
        .endr
        inc     qword ptr [rip + case_count]
        .endm

# Notes all registers for the handler, without changing any, and the flags.
        .macro  expect place, flags
        mov     [rip + expected + 0], r8
        mov     [rip + expected + 8], r9
        mov     [rip + expected + 16], r10
        mov     [rip + expected + 24], r11
        mov     [rip + expected + 32], r12
        mov     [rip + expected + 40], r13
        mov     [rip + expected + 48], r14
        mov     [rip + expected + 56], r15
        mov     [rip + expected + 64], rdi
        mov     [rip + expected + 72], rsi
        mov     [rip + expected + 80], rbp
        mov     [rip + expected + 88], rbx
        mov     [rip + expected + 96], rdx
        mov     [rip + expected + 104], rax
        mov     [rip + expected + 112], rcx
        mov     [rip + expected + 120], rsp
        mov     qword ptr [rip + expected + 128], offset \place
        mov     qword ptr [rip + expected + 136], \flags
        .endm

        .macro  flags value
        push    \value
        popf
        .endm

# The state afterwards becomes accesses too.
        .macro  after
        mov     rsp, [rip + saved]
        keep_flags
        keep    rax
        keep    rcx
        keep    rdx
        keep    rsi
        keep    rdi
        keep    r15
        .endm

# One instruction that faults once.
        .macro  fault protection, value, instruction:vararg
        before  \protection
        flags   \value
        expect  .Lfault\@, \value
.Lfault\@:
        \instruction
        after
        .endm

# The same with rsp near the page.
        .macro  fault_on_stack protection, value, stack, instruction:vararg
        before  \protection
        flags   \value
        lea     rsp, [rip + \stack]
        expect  .Lfault\@, \value
.Lfault\@:
        \instruction
        after
        .endm

        .macro  read instruction:vararg
        fault   NONE, CLEAR, \instruction
        fault   NONE, ALL, \instruction
        .endm
        .macro  write instruction:vararg
        fault   NONE, ALL, \instruction
        fault   READ, CLEAR, \instruction
        .endm
# Shifts by more than one leave the overflow flag undefined, and processors do not treat operands in memory as they treat those in registers. The
# other flags go to ah.
        .macro  fault_shifted protection, value, instruction:vararg
        before  \protection
        flags   \value
        expect  .Lfault\@, \value
.Lfault\@:
        \instruction
        lahf
        cmp     cl, cl
        after
        .endm
        .macro  write_shifted instruction:vararg
        fault_shifted NONE, ALL, \instruction
        fault_shifted READ, CLEAR, \instruction
        .endm

_start:
        mov     [rip + saved], rsp
        mov     eax, 131                # sigaltstack
        lea     rdi, [rip + alternate]
        xor     esi, esi
        syscall
        mov     eax, 13                 # rt_sigaction
        mov     edi, 11
        lea     rsi, [rip + action]
        xor     edx, edx
        mov     r10d, 8
        syscall

# Loads.
        read    mov al, [rbx]
        read    mov dh, [rbx + 1]
        read    mov cx, [rbx + 2]
        read    mov eax, [rbx + 4]
        read    mov r15, [rbx + 8]
        read    mov rbx, [rbx + 0x10]
        read    mov r15, [rip + page + 0x18]
        read    mov rax, [rbx + rcx * 8 - 0x18]
        read    movabs rax, [page + 0x20]
        read    mov eax, [page - 2]     # half of it
        read    movzx eax, byte ptr [rbx + 0x28]
        read    movsx rdx, word ptr [rbx + 0x2a]
        read    add rax, [rbx + 0x30]
        read    adc r15, [rbx + 0x38]
        read    cmp [rbx + 0x40], rax
        read    cmp dword ptr [rbx + 0x44], 5
        read    test [rbx + 0x48], cl
        read    imul rax, [rbx + 0x50], 3
        read    mul qword ptr [rbx + 0x58]
        read    cmovz rax, [rbx + 0x60]
        read    cmovnz r15, [rbx + 0x68]
        read    bt [rbx + 8], ecx
        read    bt [rbx + 0x300], dx    # far before it
        read    bsf rax, [rbx + 0x70]
        fault   NONE, ALL, xlatb
        fault   NONE, ALL, push [rbx + 0x78]
        fault   NONE, ALL, popcnt eax, [rbx + 0x7c]
        fault_on_stack NONE, ALL, page+0x80, pop rax
        fault_on_stack NONE, CLEAR, page+0x80, pop qword ptr [rip + data]
        fault_on_stack NONE, CLEAR, page+0x80, pop rsp
        fault_on_stack NONE, CLEAR, page+0x80, mov rax, [rsp]
        fault_on_stack NONE, ALL, page+0x80, xor [rsp - 8], rax
        fault   NONE, ALL, leave

# Stores.
        write   mov [rbx], al
        write   mov [rbx + 1], dh
        write   mov [rbx + 2], cx
        write   mov [rbx + 4], eax
        write   mov [rbx + 8], r15
        write   mov [rbx + 0x10], rbx
        write   mov dword ptr [rbx + 0x18], 0x12345678
        write   mov qword ptr [rip + page + 0x20], -1
        write   movabs [page + 0x28], eax
        write   mov [page - 2], eax     # half of it
        write   setc [rbx + 0x30]
        write   movnti [rbx + 0x38], rax
        fault_on_stack READ, ALL, page+0x80, pop qword ptr [rsp + 8]
        fault_on_stack READ, ALL, data+0x80, pop qword ptr [rbx + 8]

# Read and written.
        .irp    name, add, or, adc, sbb, and, sub, xor
        write   \name [rbx + 0x40], rax
        write   \name byte ptr [rbx + 0x48], 5
        write   lock \name [rbx + 0x4c], ecx
        .endr
        .irp    name, inc, dec, neg, not
        write   \name dword ptr [rbx + 0x50]
        write   lock \name word ptr [rbx + 0x54]
        .endr
        .irp    name, rol, rcr, shl, sar
        write   \name dword ptr [rbx + 0x58], 1
        write_shifted \name word ptr [rbx + 0x5c], cl
        .endr
        write_shifted shld [rbx + 0x60], rax, 5
        write   bts [rbx + 0x68], rcx
        write   lock btc [rbx + 0x6c], ecx
        write   xchg [rbx + 0x70], rax
        write   xchg [rbx + 0x78], dh
        write   xadd [rbx + 0x80], rax
        write   lock xadd [rbx + 0x88], r15
        write   cmpxchg [rbx + 0x90], rcx
        write   lock cmpxchg [rbx + 0x98], r15
        write   lock cmpxchg8b [rbx + 0xa0]
        write   lock cmpxchg16b [rbx + 0xb0]
        fault   READ, ALL, cmpxchg [rbx + 0x90], rcx

# The stack.
        .macro  pushing instruction:vararg
        fault_on_stack NONE, ALL, page+0x100, \instruction
        fault_on_stack READ, CLEAR, page+0x108, \instruction
        .endm
        pushing push rax
        pushing push rsp
        pushing push 5
        pushing push cx
        pushing push qword ptr [rip + data + 8]
        pushing pushfq
        pushing enter 0x20, 0

# Strings.
        .macro  string instruction
        fault   NONE, CLEAR, \instruction
        fault   NONE, ALL, \instruction
        .endm
        .irp    size, b, w, d, q
        string  lods\size
        string  scas\size
        string  stos\size
        fault   READ, ALL, stos\size
        .endr
        .macro  string_from source, destination, value, instruction:vararg
        before  NONE
        lea     rsi, [rip + \source]
        lea     rdi, [rip + \destination]
        flags   \value
        expect  .Lstring\@, \value
.Lstring\@:
        \instruction
        after
        .endm
        string_from data, page, CLEAR, movsq
        string_from page, data, ALL, movsd
        string_from data, page, ALL, cmpsb
        string_from page, data, CLEAR, cmpsw
        string_from page, data, CLEAR, rep movsb
        string_from data, page, CLEAR, rep movsq
        string_from data, page, ALL, repe cmpsb

# In the middle of a repetition: what has been done is done.
        .macro  in_the_middle source, destination, count, rsi, rdi, rcx, instruction:vararg
        before  NONE
        lea     rsi, [rip + \source]
        lea     rdi, [rip + \destination]
        mov     ecx, \count
        flags   CLEAR
        expect  .Lstring\@, CLEAR
        mov     qword ptr [rip + expected + 64], offset \rdi
        mov     qword ptr [rip + expected + 72], offset \rsi
        mov     qword ptr [rip + expected + 112], \rcx
.Lstring\@:
        \instruction
        after
        .endm
        in_the_middle data, page-5, 12, data+5, page, 7, rep movsb
        in_the_middle data, page-16, 5, data+16, page, 3, rep movsq
        in_the_middle page-12, data, 5, page, data+12, 2, rep movsd
        in_the_middle data, page-3, 10, data, page, 7, rep stosb
        in_the_middle data, page-24, 9, data, page, 6, rep stosq

# Floating point. Nothing may have been popped when the instruction is repeated.
        .macro  floating instruction:vararg
        before  NONE
        fninit
        fld1
        fldpi
        flags   ALL
        expect  .Lfloat\@, ALL
.Lfloat\@:
        \instruction
        after
        fstp    qword ptr [rip + sink]
        .endm
        floating fld dword ptr [rbx]
        floating fld qword ptr [rbx + 8]
        floating fld tbyte ptr [rip + page + 0x10]
        floating fild qword ptr [rbx + 0x20]
        floating fbld [rbx + 0x28]
        floating fadd qword ptr [rbx + 0x38]
        floating fst dword ptr [rbx]
        floating fstp qword ptr [rbx + 8]
        floating fstp tbyte ptr [rbx + 0x10]
        floating fistp word ptr [rbx + 0x20]
        floating fistp qword ptr [rbx + 0x28]
        floating fisttp dword ptr [rbx + 0x30]
        floating fbstp [rbx + 0x38]
        floating fnstcw [rbx + 0x48]
        floating fnstsw [rbx + 0x4a]
# Behind fninit, so that there is no last instruction whose address is saved: Intel's processors would save that of its translation.
        before  NONE
        fninit
        flags   ALL
        expect  1f, ALL
1:      fnsave  [rbx + 0x80]
        after
        fninit
        before  NONE
        lea     r15, [rip + page + 0x600]
        flags   CLEAR
        expect  1f, CLEAR
1:      fxsave  [r15]
        after
        fault   NONE, CLEAR, fxrstor [rbp + 0x300]
        fault   NONE, CLEAR, stmxcsr [rbx + 0x50]
        fault   NONE, CLEAR, ldmxcsr [rbx + 0x50]

# Vectors.
        movups  xmm0, [rip + data + 0x33]
        movups  xmm1, [rip + data + 0x7b]
        read    movaps xmm2, [rbx + 0x60]
        read    movups xmm2, [rip + page - 7]
        read    movsd xmm2, [rbx + 0x70]
        read    movhps xmm2, [rbx + 0x78]
        read    paddd xmm2, [rbx + 0x80]
        read    addss xmm2, [rbx + 0x90]
        read    pinsrw xmm2, word ptr [rbx + 0x98], 3
        read    cvtsi2sd xmm2, dword ptr [rbx + 0x9c]
        write   movaps [rbx + 0x60], xmm2
        write   movups [rip + page - 7], xmm2
        write   movss [rbx + 0x70], xmm2
        write   movhps [rbx + 0x78], xmm2
        write   movntdq [rbx + 0x80], xmm2
        write   maskmovdqu xmm0, xmm1

        needs_state "avx state", 6, no_avx
        vmovups ymm0, [rip + data + 0x33]
        vmovups ymm1, [rip + data + 0x7b]
        read    vmovups ymm2, [rbx + 0x21]
        read    vmaskmovps ymm2, ymm1, [rbx + 0x41]
        read    vbroadcastss ymm2, [rbx + 0x61]
        write   vmovups [rbx + 0x81], ymm0
        write   vmaskmovps [rbx + 0xa1], ymm1, ymm0
        vzeroupper
no_avx: needs_state "avx-512 state", 0xe6, no_avx512
        vmovdqu64 zmm20, [rip + data + 0x33]
        read    vmovdqu64 zmm21, [rbx + 0x21]
        read    vpaddd zmm21, zmm20, [rbx + 0x61]{1to16}
        write   vmovdqu64 [rbx + 0x81], zmm20
        mov     eax, 0x8005
        kmovw   k1, eax
        read    vmovdqu32 zmm21{k1}, [rip + page - 60]
        write   vmovdqu32 [rip + page - 60]{k1}, zmm20
        write   vpcompressd [rbx + 0x101]{k1}, zmm20
        vzeroupper
no_avx512:

# Transfers: the target, or the place for the return address, is on the page.
        lea     rax, [rip + arrived]
        mov     [rip + page + 0x400], rax
        lea     rax, [rip + jumped]
        mov     [rip + page + 0x408], rax
        lea     rax, [rip + returned]
        mov     [rip + page + 0x410], rax
        before  NONE
        flags   ALL
        expect  1f, ALL
1:      call    qword ptr [rbx + 0x400]
        after
        before  NONE
        flags   ALL
        expect  1f, ALL
1:      jmp     qword ptr [rbx + 0x408]
jumped: after
        before  NONE
        flags   CLEAR
        lea     rsp, [rip + page + 0x410]
        expect  1f, CLEAR
1:      ret
returned:
        after
        before  READ
        flags   CLEAR
        lea     rsp, [rip + page + 0x500]
        expect  1f, CLEAR
1:      call    arrived
        after
        before  NONE
        flags   ALL
        lea     rsp, [rip + page + 0x500]
        expect  1f, ALL
1:      call    qword ptr [rip + far_arrived]
        after

        mov     rax, [rip + fault_count]
        cmp     rax, [rip + case_count]
        jne     wrong
        lea     rdi, [rip + page]
        mov     edx, 3
        call    protect
        finish

arrived:
        ret
wrong:  exit    1

# Sets the protection of the page at rdi to edx. Changes rax, rcx, rsi, r11.
protect:
        mov     esi, 4096
        mov     eax, 10                 # mprotect
        syscall
        test    eax, eax
        jnz     wrong
        ret

# rsi: siginfo, rdx: context.
handler:
        inc     qword ptr [rip + fault_count]
        lea     rdi, [rip + page]
        mov     rax, [rsi + 16]         # si_addr
        sub     rax, rdi
        cmp     rax, 4096
        jae     wrong
        lea     rsi, [rdx + 40]         # general registers and rip
        lea     rdi, [rip + expected]
        mov     ecx, 17
        cld
        repe cmpsq
        jne     wrong
        mov     rax, [rsi]
        btr     rax, 16                 # the resume flag is the processor's
        cmp     rax, [rdi]
        jne     wrong
        lea     rdi, [rip + page]
        mov     edx, 3
        jmp     protect

restorer:
        mov     eax, 15                 # rt_sigreturn
        syscall

        .data
        .balign 8
action: .quad   handler, 0x0c000004, restorer, 0        # SA_SIGINFO, SA_RESTORER, SA_ONSTACK
alternate:
        .quad   alternate_stack, 0, 16384
far_arrived:
        .quad   arrived
fault_count:
        .quad   0
case_count:
        .quad   0
expected:
        .fill   18, 8, 0
        .balign 4096
        .fill   4096, 1, 0x11
page:   .set    number, 0
        .rept   4096
        .byte   number & 0x3f
        .set    number, number + 1
        .endr
        .fill   4096, 1, 0x22
        .bss
        .balign 64
alternate_stack:
        .skip   16384
        .text
