# xchg, xadd, cmpxchg with both outcomes, cmpxchg8b and 16b, and every instruction that may be locked, of all widths.
        .include "memory.inc"
_start:
        lea     rbx, [rip + data]

        .macro  one instruction:vararg
        \instruction
        keep_flags
        .endm

        mov     rax, 0x1111111111111111
        mov     rcx, 0x2222222222222222
        xchg    [rbx + 1], al
        xchg    [rbx + 3], ah
        xchg    dh, [rbx + 4]
        xchg    [rbx + 6], ax
        xchg    [rbx + 8], eax
        xchg    [rbx + 0x10], rax
        xchg    r15, [rbx + 0x18]
        xchg    [rbx + 0x20], rbx       # the base
        keep    rbx
        lea     rbx, [rip + data]
        lock xchg [rbx + 0x28], rcx
        keep    rax
        keep    rcx
        keep    rdx
        keep    r15

# Once plain and once locked.
        .macro  both prefix
        mov     rax, 0x8877665544332211
        mov     rcx, 0x1122334455667788
        mov     rdx, 0x7f80ff0080007fff
        mov     r15, rcx
        .irp    name, add, or, adc, sbb, and, sub, xor
        one     \prefix \name [rbx + 0x101], al
        one     \prefix \name [rbx + 0x103], ch
        one     \prefix \name [rbx + 0x105], dh
        one     \prefix \name [rbx + 0x106], cx
        one     \prefix \name [rbx + 0x109], ecx
        one     \prefix \name [rbx + 0x110], rcx
        one     \prefix \name [rbx + 0x118], r15
        one     \prefix \name [rip + data + 0x11c], r15
        one     \prefix \name byte ptr [rbx + 0x120], 0x85
        one     \prefix \name word ptr [rbx + 0x122], 0x1234
        one     \prefix \name word ptr [rbx + 0x124], -3
        one     \prefix \name dword ptr [rbx + 0x128], -2
        one     \prefix \name dword ptr [rbx + 0x12c], 0x12345678
        one     \prefix \name qword ptr [rbx + 0x130], -3
        one     \prefix \name qword ptr [rbx + 0x138], -0x12345678
        .endr
        .irp    name, inc, dec, neg, not
        one     \prefix \name byte ptr [rbx + 0x140]
        one     \prefix \name word ptr [rbx + 0x142]
        one     \prefix \name dword ptr [rbx + 0x144]
        one     \prefix \name qword ptr [rbx + 0x148]
        .endr
        mov     esi, 70
        mov     rdi, -70
        .irp    name, bts, btr, btc
        one     \prefix \name word ptr [rbx + 0x150], 3
        one     \prefix \name dword ptr [rbx + 0x154], 33
        one     \prefix \name qword ptr [rbx + 0x158], 63
        one     \prefix \name [rbx + 0x160], si
        one     \prefix \name [rbx + 0x164], esi
        one     \prefix \name [rbx + 0x168], rsi
        one     \prefix \name [rbx + 0x170], di
        one     \prefix \name [rbx + 0x174], edi
        one     \prefix \name [rbx + 0x178], rdi
        .endr
        one     \prefix xadd [rbx + 0x180], al
        one     \prefix xadd [rbx + 0x181], ch
        one     \prefix xadd [rbx + 0x182], ax
        one     \prefix xadd [rbx + 0x184], eax
        one     \prefix xadd [rbx + 0x188], rax
        one     \prefix xadd [rbx + 0x190], r15
        keep    rax
        keep    rcx
        keep    r15

        # Failing, with what is in memory left in the accumulator, and then succeeding with that.
        mov     rax, 0x0123456789abcdef
        one     \prefix cmpxchg [rbx + 0x1a0], cl
        keep    rax
        one     \prefix cmpxchg [rbx + 0x1a0], dh
        mov     rax, 0x0123456789abcdef
        one     \prefix cmpxchg [rbx + 0x1a2], cx
        keep    rax
        one     \prefix cmpxchg [rbx + 0x1a2], cx
        mov     rax, 0x0123456789abcdef
        one     \prefix cmpxchg [rbx + 0x1a4], ecx
        keep    rax
        one     \prefix cmpxchg [rbx + 0x1a4], ecx
        mov     rax, 0x0123456789abcdef
        one     \prefix cmpxchg [rbx + 0x1a8], rcx
        keep    rax
        one     \prefix cmpxchg [rbx + 0x1a8], r15
        mov     eax, 1
        lea     rax, [rip + data]       # the accumulator is the base
        one     \prefix cmpxchg [rax + 0x1b0], r15
        keep    rax
        .endm
        both
        both    lock

        .macro  doubles prefix
        mov     rsi, rbx
        xor     eax, eax
        xor     edx, edx
        mov     ebx, 0x33333333
        mov     ecx, 0x44444444
        one     \prefix cmpxchg8b [rsi + 0x1c0]
        keep    rax
        keep    rdx
        one     \prefix cmpxchg8b [rsi + 0x1c0]
        mov     rbx, rsi
        .endm
        doubles
        doubles lock

        needs   cmpxchg16b, 1, ecx, 13, 1f
        lea     rsi, [rip + data]
        .irp    prefix, , lock
        xor     eax, eax
        xor     edx, edx
        mov     rbx, 0x5555555555555555
        mov     rcx, 0x6666666666666666
        one     \prefix cmpxchg16b [rsi + 0x1d0]
        keep    rax
        keep    rdx
        one     \prefix cmpxchg16b [rsi + 0x1d0]
        one     \prefix cmpxchg16b [rip + data + 0x1e0]
        .endr
1:      finish
