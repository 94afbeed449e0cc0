# bt, bts, btr, btc with registers that reach far beyond their operand, both ways, and with immediates; bsf and bsr.
        .include "memory.inc"
_start:
        lea     rbx, [rip + data + 0x400]
        .macro  one instruction:vararg
        \instruction
        keep_flags
        .endm
        .irp    number, 0, 1, 15, 16, 31, 32, 63, 64, 200, 4095, -1, -16, -17, -32, -33, -64, -65, -4096
        mov     rax, \number
        mov     r15, rax
        .irp    name, bt, bts, btr, btc
        one     \name [rbx], ax
        one     \name [rbx], eax
        one     \name [rbx], rax
        one     \name [rbx + 0x21], r15
        .endr
        .endr
        mov     rax, 0x7fff12340005     # the upper parts do not count
        one     bt [rbx], ax
        one     btc [rbx + 8], ax
        mov     rax, 0x7fff00000025
        one     bts [rbx], eax
        .irp    number, 0, 3, 15, 16, 31, 33, 63, 255
        .irp    name, bt, bts, btr, btc
        one     \name word ptr [rbx + 0x40], \number
        one     \name dword ptr [rbx + 0x44], \number
        one     \name qword ptr [rip + data + 0x448], \number
        .endr
        .endr
        mov     eax, 0x25
        lea     rcx, [rip + data + 0x400]
        mov     edx, 3
        one     bts [rcx + rdx * 4], eax
        one     btr [ecx + edx * 4], eax
        mov     r15, rcx
        .irp    name, bsf, bsr
        one     \name ax, [rbx + 0x50]
        one     \name eax, [rbx + 0x52]
        one     \name r15, [rbx + 0x55]
        keep    rax
        keep    r15
        .endr
        finish
