# Arithmetic with memory: as source, as destination with registers and immediates, of all widths; flags are kept.
        .include "memory.inc"
_start:
        lea     rbx, [rip + data]
        mov     rax, 0x8877665544332211
        mov     rcx, 0x1122334455667788
        mov     rdx, 0x7f80ff0080007fff

# Shifts by more than one leave the overflow flag undefined. Intel's processors keep it if the operand is a register, and change it if it is in memory; the
# other flags are looked at. Changes ah.
        .macro  shifted instruction:vararg
        \instruction
        lahf
        keep    rax
        .endm

        .macro  one instruction:vararg
        \instruction
        keep_flags
        .endm

        .irp    name, add, or, adc, sbb, and, sub, xor, cmp
        one     \name al, [rbx + 1]
        one     \name ax, [rbx + 2]
        one     \name eax, [rbx + 3]
        one     \name rax, [rbx + 4]
        one     \name ah, [rbx + 5]
        one     \name dh, [rbx + 0x81]
        one     \name r15, [rbx + 0x90]
        one     \name spl, [rbx + 0xa0]
        one     \name [rbx + 0x101], cl
        one     \name [rbx + 0x102], cx
        one     \name [rbx + 0x104], ecx
        one     \name [rbx + 0x108], rcx
        one     \name [rbx + 0x111], ch
        one     \name [rbx + 0x112], dh
        one     \name [rbx + 0x118], r15
        one     \name [rbx + 0x120], rbx
        one     \name [rbx + 0x128], bh
        one     \name byte ptr [rbx + 0x130], 0x85
        one     \name word ptr [rbx + 0x132], 0x7f
        one     \name word ptr [rbx + 0x134], 0x1234
        one     \name dword ptr [rbx + 0x138], -2
        one     \name dword ptr [rbx + 0x13c], 0x12345678
        one     \name qword ptr [rbx + 0x140], -3
        one     \name qword ptr [rbx + 0x148], -0x12345678
        keep    rax
        keep    r15
        keep    rdx
        .endr

        one     test [rbx + 0x10], al
        one     test [rbx + 0x10], ah
        one     test [rbx + 0x12], ax
        one     test [rbx + 0x14], eax
        one     test [rbx + 0x18], rax
        one     test byte ptr [rbx + 0x20], 0x21
        one     test word ptr [rbx + 0x22], 0x2221
        one     test dword ptr [rbx + 0x24], 0x80000000
        one     test qword ptr [rbx + 0x28], -1

        .irp    name, inc, dec, neg, not
        one     \name byte ptr [rbx + 0x150]
        one     \name word ptr [rbx + 0x152]
        one     \name dword ptr [rbx + 0x154]
        one     \name qword ptr [rbx + 0x158]
        .endr

        .irp    name, rol, ror, rcl, rcr, shl, shr, sar
        mov     ecx, 5
        .irp    size, byte, word, dword, qword
        one     \name \size ptr [rbx + 0x160], 1
        shifted \name \size ptr [rbx + 0x168], 3
        shifted \name \size ptr [rbx + 0x170], cl
        .endr
        mov     ecx, 0
        one     \name dword ptr [rbx + 0x178], cl
        one     \name qword ptr [rbx + 0x178], cl
        mov     ecx, 0x29
        shifted \name byte ptr [rbx + 0x179], cl
        shifted \name word ptr [rbx + 0x17a], cl
        shifted \name dword ptr [rbx + 0x17c], cl
        .endr
        mov     rax, 0x8877665544332211
        mov     ecx, 9
        .irp    name, shld, shrd
        shifted \name [rbx + 0x180], ax, 4
        shifted \name [rbx + 0x184], eax, 4
        shifted \name [rbx + 0x188], rax, 40
        shifted \name [rbx + 0x190], ax, cl
        shifted \name [rbx + 0x194], eax, cl
        shifted \name [rbx + 0x198], rax, cl
        shifted \name [rbx + 0x1a0], r15, cl
        .endr

        .irp    name, mul, imul
        mov     rax, 0x123456789abcdef1
        one     \name byte ptr [rbx + 0x90]
        one     \name word ptr [rbx + 0x92]
        keep    rdx
        one     \name dword ptr [rbx + 0x94]
        keep    rdx
        one     \name qword ptr [rbx + 0x98]
        keep    rdx
        keep    rax
        .endr
        one     imul ax, [rbx + 0x30]
        one     imul eax, [rbx + 0x34]
        one     imul r15, [rbx + 0x38]
        one     imul ax, [rbx + 0x30], 3
        one     imul ecx, [rbx + 0x34], 0x12345
        one     imul r15, [rbx + 0x38], -7
        keep    rax
        keep    rcx
        keep    r15
        .irp    name, div, idiv
        mov     eax, 0x0300
        \name   byte ptr [rbx + 0x41]
        keep    rax
        mov     eax, 0x1234
        xor     edx, edx
        \name   word ptr [rbx + 0x42]
        keep    rax
        keep    rdx
        mov     eax, 0x12345678
        xor     edx, edx
        \name   dword ptr [rbx + 0x44]
        keep    rax
        keep    rdx
        mov     rax, 0x1234567812345678
        xor     edx, edx
        \name   qword ptr [rbx + 0x48]
        keep    rax
        keep    rdx
        .endr

        needs   popcnt, 1, ecx, 23, 1f
        lea     rbx, [rip + data]
        one     popcnt ax, [rbx + 0x51]
        keep    rax
        one     popcnt ecx, [rbx + 0x52]
        keep    rcx
        one     popcnt r15, [rbx + 0x53]
        keep    r15
1:      needs   sse4.2, 1, ecx, 20, 1f
        lea     rbx, [rip + data]
        crc32   eax, byte ptr [rbx + 0x54]
        crc32   eax, word ptr [rbx + 0x55]
        crc32   eax, dword ptr [rbx + 0x56]
        crc32   rax, byte ptr [rbx + 0x57]
        crc32   rax, qword ptr [rbx + 0x58]
        keep    rax
1:      needs   lzcnt, 0x80000001, ecx, 5, 1f
        lea     rbx, [rip + data]
        one     lzcnt ax, [rbx + 0x59]
        keep    rax
        one     lzcnt ecx, [rbx + 0x5a]
        keep    rcx
        one     lzcnt r15, [rbx + 0x5b]
        keep    r15
1:      needs   bmi1, 7, ebx, 3, 1f
        lea     rbx, [rip + data]
        mov     ecx, 0x0c05
        mov     rdx, 0x00ff00ff00ff00ff
        one     tzcnt eax, [rbx + 0x5c]
        keep    rax
        one     tzcnt r15, [rbx + 0x5d]
        keep    r15
        one     andn eax, edx, [rbx + 0x60]
        one     andn r15, rdx, [rbx + 0x61]
        keep    r15
        one     bextr eax, [rbx + 0x62], ecx
        one     bextr r15, [rbx + 0x63], rcx
        keep    r15
        one     blsi eax, [rbx + 0x64]
        one     blsi r15, [rbx + 0x65]
        keep    r15
        one     blsmsk eax, [rbx + 0x66]
        one     blsmsk r15, [rbx + 0x67]
        keep    r15
        one     blsr eax, [rbx + 0x68]
        one     blsr r15, [rbx + 0x69]
        keep    rax
        keep    r15
1:      needs   bmi2, 7, ebx, 8, 1f
        lea     rbx, [rip + data]
        mov     ecx, 5
        mov     rdx, 0x00ff00ff00ff00ff
        bzhi    eax, [rbx + 0x6a], ecx
        bzhi    r15, [rbx + 0x6b], rcx
        keep    r15
        mulx    esi, edi, [rbx + 0x6c]
        mulx    rsi, rdi, [rbx + 0x6d]
        keep    rsi
        keep    rdi
        pdep    r15, rdx, [rbx + 0x6e]
        keep    r15
        pext    r15, rdx, [rbx + 0x6f]
        keep    r15
        rorx    r15, [rbx + 0x70], 7
        keep    r15
        rorx    eax, [rbx + 0x71], 7
        keep    rax
        sarx    r15, [rbx + 0x72], rcx
        keep    r15
        shlx    r15, [rbx + 0x73], rcx
        keep    r15
        shrx    eax, [rbx + 0x74], ecx
        keep    rax
1:      needs   adx, 7, ebx, 19, 1f
        lea     rbx, [rip + data]
        mov     rax, -1
        add     rax, rax
        one     adcx eax, [rbx + 0x75]
        one     adox rax, [rbx + 0x76]
        one     adcx r15, [rbx + 0x77]
        one     adox r15, [rbx + 0x78]
        keep    rax
        keep    r15
1:      finish
