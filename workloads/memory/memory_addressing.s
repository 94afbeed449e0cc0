# Addresses: every base with every index, scales, displacements, 32-bit addresses.
        .include "memory.inc"
_start:
        mov     [rip + saved], rsp

# Stores the index, then loads into the base. Nothing may touch the stack meanwhile: rsp is one of the bases.
        .macro  pair base, index
        .ifnc   \base, \index
        lea     \base, [rip + data + 0x100]
        mov     \index, 6
        mov     [\base + \index * 8 - 0x10], \index
        mov     \base, [\base + \index * 4 + 0x120]
        .endif
        .endm
        .macro  with_all base
        .irp    index, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
        pair    \base, \index
        .endr
        .endm
        .irp    base, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
        with_all \base
        .endr
        mov     rsp, [rip + saved]

# Displacements of none, one and four bytes, positive and negative; the register itself as index.
        .irp    base, rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
        lea     \base, [rip + data + 0x200]
        mov     [\base], \base
        add     dword ptr [\base + 0x7f], 3
        add     dword ptr [\base - 0x80], 5
        add     word ptr [\base + 0x180], 7
        sub     byte ptr [\base - 0x180], 9
        .endr
        mov     rsp, [rip + saved]
        .irp    index, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
        mov     \index, 5
        mov     [data + \index * 8 + 1], \index
        mov     [\index * 2 + data + 3], \index
        mov     [\index + \index * 4 + data + 0x40], \index
        mov     \index, -5
        mov     [\index * 8 + data + 0x300], \index
        xor     \index, [\index + \index + data + 0x310]
        .endr

# Relative to rip, before and behind, with an immediate after the displacement.
        mov     rax, [rip + data + 0x18]
        mov     [rip + data + 0x20], ax
        add     word ptr [rip + data + 0x28], 0x1234
        cmp     byte ptr [rip + data + 0x30], 0x30
        keep_flags
        imul    r15, [rip + data + 0x38], 0x1234567
        keep    r15
        mov     eax, [rip + _start]     # code
        keep    rax
        mov     eax, [eip + data + 0x3c]
        keep    rax

# Addresses of 32 bits: what is above them is not used, and sums wrap around.
        mov     rbx, 0x1234567800000000
        lea     rax, [rip + data]
        or      rbx, rax
        mov     rcx, 0x5555555500000004
        mov     eax, [ebx]
        mov     [ebx + ecx * 8 + 0x400], eax
        add     [ebx + 0x410], cx
        mov     edx, -8
        mov     [ebx + edx + 0x420], rdx
        mov     r15, rbx
        mov     r14, rcx
        mov     [r15d + r14d * 2 + 0x430], r15
        mov     r15, [r15d + 0x430]
        keep    r15
        mov     [edx * 2 + data + 0x450], dl
        lea     rsp, [rip + data + 0x500]
        mov     [esp + 8], esp
        mov     [esp + ecx], cl
        mov     rsp, [rip + saved]
        mov     eax, 4
        lea     rax, [rbx + rax * 8]    # no access
        push    qword ptr [ebx + 0x440]
        pop     qword ptr [ebx + 0x448]
        mov     edi, ebx
        mov     rsi, rbx
        mov     rcx, 0x100000003
        .byte   0x67
        rep movsb                       # three, by esi, edi and ecx
        keep    rcx
        keep    rsi
        finish
