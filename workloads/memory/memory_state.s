# xsave, xsavec, xsaveopt and xrstor, with several sets of components, of registers that are all in use: whether those that
# are not are saved is up to the processor.
        .include "memory.inc"

        .macro  components mask
        mov     eax, \mask
        xor     edx, edx
        .endm

_start:
        lea     rbx, [rip + data]
        fninit
        fldcw   [rip + precision]
        .irp    number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        movups  xmm\number, [rbx + \number * 5 + 1]
        .endr
        needs   xsave, 1, ecx, 27, nothing
        needs_state "avx state", 6, legacy
        .irp    number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
        vmovups ymm\number, [rip + data + \number * 5 + 1]
        .endr
        needs_state "avx-512 state", 0xe6, legacy
        .irp    number, 0, 1, 15, 16, 17, 31
        vmovups zmm\number, [rip + data + \number * 5 + 1]
        .endr
        kmovw   k1, [rip + data + 1]
        kmovw   k7, [rip + data + 2]
legacy:
        lea     rdi, [rip + area]
        lea     rsi, [rip + other_area]
        .irp    mask, 0, 1, 2, 3, 6, 7, 0xe7, 0xffffffff
        components \mask
        xsave   [rdi]
        components \mask
        xrstor  [rdi]
        components \mask
        xsave64 [rsi]
        components \mask
        xrstor64 [rsi]
        .endr
        components 7
        xrstor  [rsi]                   # more is in it than is asked for

# The forms that leave out what they need not write.
        mov     eax, 0xd
        mov     ecx, 1
        cpuid
        mov     r12d, eax
        bt      r12d, 0
        jc      1f
        lacks   xsaveopt
        jmp     2f
1:      .irp    mask, 3, 7, 0xe7
        components \mask
        xsaveopt [rip + area]
        components \mask
        xsaveopt64 [rip + area]
        .endr
        components 7
        xrstor  [rsi]
        components 7
        xsaveopt [rip + third_area]     # not where it was restored from: nothing is left out
2:      bt      r12d, 1
        jc      1f
        lacks   xsavec
        jmp     2f
1:      .irp    mask, 1, 2, 3, 4, 6, 7, 0xa7, 0xe7
        components \mask
        xsavec  [rip + area]
        components \mask
        xrstor  [rip + area]
        components \mask
        xsavec64 [rip + other_area]
        components \mask
        xrstor64 [rip + other_area]
        .endr
2:
        mov     r13d, 4096 / 8          # what was saved, word by word
        lea     r14, [rip + area]
3:      mov     rax, [r14]
        add     r14, 8
        dec     r13d
        jnz     3b
nothing:
        finish

        .data
precision:
        .word   0x027f
        .bss
        .balign 64
area:   .skip   16384
other_area:
        .skip   16384
third_area:
        .skip   16384
        .text
