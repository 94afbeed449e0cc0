# mov and its kin: all widths, registers, immediates, high bytes, extensions, conditional moves, movbe, xlat.
        .include "memory.inc"
_start:
        mov     [rip + saved], rsp
        lea     rbx, [rip + data]

# All registers, to and from memory. rsp and rbx change and come back.
        .irp    register, rax, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15
        mov     \register, [rbx + 0x21]
        mov     [rbx + 0x128], \register
        .endr
        mov     rsp, [rbx + 0x31]
        mov     [rbx + 0x130], rsp
        mov     rsp, [rip + saved]
        mov     rbx, [rip + data + 0x38]
        mov     [rip + data + 0x138], rbx
        lea     rbx, [rip + data]
        .irp    register, eax, ecx, edx, esi, edi, ebp, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d
        mov     \register, [rbx + 0x43]
        mov     [rbx + 0x140], \register
        .endr
        .irp    register, ax, cx, dx, si, di, bp, r8w, r9w, r10w, r11w, r12w, r13w, r14w, r15w
        mov     \register, [rbx + 0x45]
        mov     [rbx + 0x146], \register
        .endr
        .irp    register, al, cl, dl, sil, dil, bpl, r8b, r9b, r10b, r11b, r12b, r13b, r14b, r15b, ah, ch, dh
        mov     \register, [rbx + 0x47]
        mov     [rbx + 0x149], \register
        .endr
        mov     spl, [rbx + 0x51]
        mov     [rbx + 0x150], spl
        mov     rsp, [rip + saved]
        mov     bh, [rip + data + 0x52]
        mov     [rip + data + 0x152], bh
        lea     rbx, [rip + data]

# Immediates.
        mov     byte ptr [rbx + 0x160], 0x81
        mov     word ptr [rbx + 0x162], 0x8182
        mov     dword ptr [rbx + 0x164], 0x81828384
        mov     qword ptr [rbx + 0x168], -2
        mov     qword ptr [rbx + 0x170], 0x7fffffff

# Absolute addresses.
        movabs  al, [data + 0x61]
        movabs  [data + 0x161], al
        movabs  ax, [data + 0x62]
        movabs  [data + 0x172], ax
        movabs  eax, [data + 0x64]
        movabs  [data + 0x174], eax
        movabs  rax, [data + 0x66]
        movabs  [data + 0x178], rax
        .byte   0x67, 0xa1              # mov eax, [32-bit address]
        .long   data + 0x68
        keep    rax
        .byte   0x67, 0x48, 0xa3        # mov [32-bit address], rax
        .long   data + 0x180
        mov     eax, [data + 0x70]      # without base
        mov     [data + 0x188], eax
        mov     eax, ds:[rbx + 0x72]    # prefixes without effect
        mov     eax, es:[rbx + 0x73]
        .byte   0x2e, 0x8b, 0x43, 0x74  # mov eax, cs:[rbx + 0x74]
        keep    rax

# Extensions, from bytes with and without sign.
        .irp    offset, 0x7f, 0x80, 0x90
        movzx   eax, byte ptr [rbx + \offset]
        keep    rax
        movzx   ax, byte ptr [rbx + \offset]
        keep    rax
        movzx   rax, byte ptr [rbx + \offset]
        movzx   ecx, word ptr [rbx + \offset]
        keep    rcx
        movzx   rcx, word ptr [rbx + \offset]
        movsx   r15w, byte ptr [rbx + \offset]
        keep    r15
        movsx   r15d, byte ptr [rbx + \offset]
        keep    r15
        movsx   r15, byte ptr [rbx + \offset]
        keep    r15
        movsx   r12d, word ptr [rbx + \offset]
        keep    r12
        movsx   r12, word ptr [rbx + \offset]
        keep    r12
        movsxd  r13, dword ptr [rbx + \offset]
        keep    r13
        .byte   0x63, 0x83              # movsxd eax, [rbx + disp32]: no extension
        .long   \offset
        keep    rax
        .endr

# The register that is loaded is the one that the address is made of.
        lea     rax, [rip + data + 8]
        mov     [rbx + 0x190], rax
        mov     rax, [rbx + 0x190]
        mov     rax, [rax]
        lea     rcx, [rip + data]
        movzx   ecx, byte ptr [rcx + 7]
        mov     rcx, [rbx + rcx * 8]
        keep    rcx
        lea     r15, [rip + data + 0x190]
        mov     r15, [r15]
        mov     r15, [r15]
        keep    r15
        mov     [rbx + 0x198], rbx      # the base is the value
        lea     r15, [rip + data]
        mov     [r15 + 0x1a0], r15
        mov     [rbx + 0x1a8], bl
        mov     [rbx + 0x1a9], bh

# Conditional moves load whether or not they move. With the flags of 1 - 1, then of 1 - 2, then of an overflow.
        .macro  conditional
        .irp    condition, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
        cmov\condition rax, [rbx + 0xa0]
        cmov\condition ecx, [rbx + 0xa8]
        cmov\condition dx, [rbx + 0xb0]
        cmov\condition r15, [rbx + 0xb1]
        set\condition byte ptr [rbx + 0x1b0]
        .endr
        keep    rax
        keep    rcx
        keep    rdx
        keep    r15
        .endm
        mov     r8d, 1
        mov     rdx, rbx
        cmp     r8d, 1
        conditional
        cmp     r8d, 2
        conditional
        mov     r8d, 0x80000000
        cmp     r8d, 1
        conditional
        keep_flags

        lea     rbx, [rip + data]
        mov     eax, 0x1234ff
        xlatb                           # with al, not eax
        keep    rax
        mov     al, 0x10
        .byte   0x67                    # with ebx
        xlatb
        keep    rax

        needs   movbe, 1, ecx, 22, 1f
        lea     rbx, [rip + data]
        movbe   ax, [rbx + 0xc0]
        keep    rax
        movbe   ecx, [rbx + 0xc1]
        keep    rcx
        movbe   r15, [rbx + 0xc2]
        keep    r15
        movbe   [rbx + 0x1c0], ax
        movbe   [rbx + 0x1c4], ecx
        movbe   [rbx + 0x1c8], r15
1:
        needs   movdiri, 7, ecx, 27, 2f
        lea     rbx, [rip + data]
        mov     eax, 0x12345678
        movdiri [rbx + 0x1d0], eax
        movdiri [rbx + 0x1d8], rax
2:
        needs   movdir64b, 7, ecx, 28, 3f
        lea     rbx, [rip + data]
        lea     rdi, [rbx + 0x200]
        movdir64b rdi, [rbx + 0x43]
        movdir64b edi, [ebx + 0x44]
3:
        lea     rbx, [rip + data]
        mov     eax, 0x87654321
        movnti  [rbx + 0x1e0], eax
        movnti  [rbx + 0x1e8], rax
        sfence
        lfence
        mfence
        prefetcht0 [rbx]
        prefetchnta [rbx + 64]
        nop     dword ptr [rbx]
        clflush [rbx + 0x200]
        finish
