# x87: every form with memory. Environments and states are loaded before they are stored: the addresses of the last
# instruction and its operand in them are then zero, while the true ones get lost on some processors when another program runs.
        .include "memory.inc"
_start:
        lea     rbx, [rip + data]
        fninit
        fld     dword ptr [rip + single]
        fld     qword ptr [rip + double]
        fld     tbyte ptr [rip + extended]
        fst     dword ptr [rbx]
        fst     qword ptr [rbx + 8]
        fstp    tbyte ptr [rbx + 0x11]
        fstp    dword ptr [rbx + 0x20]
        fstp    qword ptr [rbx + 0x28]

        fild    word ptr [rip + integer]
        fild    dword ptr [rip + integer]
        fild    qword ptr [rip + integer]
        fistp   qword ptr [rbx + 0x30]
        fist    dword ptr [rbx + 0x38]
        fistp   dword ptr [rbx + 0x3c]
        fist    word ptr [rbx + 0x40]
        fistp   word ptr [rbx + 0x42]
        fld     qword ptr [rip + double]
        fisttp  word ptr [rbx + 0x44]
        fld     qword ptr [rip + double]
        fisttp  dword ptr [rbx + 0x48]
        fld     qword ptr [rip + double]
        fisttp  qword ptr [rbx + 0x50]
        fbld    [rip + decimal]
        fbstp   [rbx + 0x58]

        fld     qword ptr [rip + double]
        .irp    name, fadd, fmul, fsub, fsubr, fdiv, fdivr
        \name   dword ptr [rip + single]
        \name   qword ptr [rip + double]
        fst     qword ptr [rbx + 0x68]
        .endr
        .irp    name, fiadd, fimul, fisub, fisubr, fidiv, fidivr
        \name   word ptr [rip + integer]
        \name   dword ptr [rip + integer]
        fst     qword ptr [rbx + 0x70]
        .endr
        fcom    dword ptr [rip + single]
        fnstsw  [rbx + 0x78]
        fcom    qword ptr [rip + double]
        fnstsw  [rbx + 0x7a]
        ficom   word ptr [rip + integer]
        ficom   dword ptr [rip + integer]
        fnstsw  ax
        keep    rax
        fld     st(0)
        fcomp   dword ptr [rip + single]
        fld     st(0)
        fcomp   qword ptr [rip + double]
        fld     st(0)
        ficomp  word ptr [rip + integer]
        ficomp  dword ptr [rip + integer]

        fnstcw  [rbx + 0x7c]
        mov     word ptr [rbx + 0x7e], 0x0c7f
        fldcw   [rbx + 0x7e]
        fnstcw  [rbx + 0x7c]
        fstcw   [rbx + 0x7c]
        fstsw   [rbx + 0x7a]
        fclex

# Indexes and other bases.
        mov     ecx, 3
        lea     r15, [rip + data]
        fild    dword ptr [r15 + rcx * 4]
        fstp    tbyte ptr [r15 + rcx * 8 + 0x80]
        fld     tbyte ptr [r15 + rcx * 8 + 0x80]
        fstp    qword ptr [rsp - 8]
        fld     qword ptr [rsp - 8]
        fistp   dword ptr [ebx + 0xa0]

        fldenv  [rip + environment]
        fnstenv [rbx + 0x100]
        fldenv  [rbx + 0x100]
        fstenv  [rbx + 0x120]
        frstor  [rip + state]
        fnsave  [rbx + 0x180]
        frstor  [rbx + 0x180]
        fsave   [rbx + 0x201]
        frstor  [rbx + 0x201]
        .byte   0x66                    # the short form
        fldenv  [rip + short_environment]
        .byte   0x66
        fnstenv [rbx + 0x280]
        fninit
        frstor  [rip + state]
        .byte   0x66
        fnsave  [rbx + 0x2a0]
        .byte   0x66
        frstor  [rbx + 0x2a0]
        frstor  [rip + state]
        fxsave  [rbx + 0x400]
        fxrstor [rbx + 0x400]
        fxsave64 [rbx + 0x600]
        fxrstor64 [rbx + 0x600]
        emms

        stmxcsr [rbx + 0x80]
        mov     dword ptr [rbx + 0x84], 0x3f80
        ldmxcsr [rbx + 0x84]
        stmxcsr [rbx + 0x88]
        ldmxcsr [rbx + 0x80]

# MMX uses the same registers.
        movq    mm0, [rbx + 0x90]
        movd    mm1, [rbx + 0x98]
        paddb   mm0, [rbx + 0xa0]
        punpcklbw mm0, [rbx + 0xa8]
        pshufw  mm2, [rbx + 0xb0], 0x1b
        movq    [rbx + 0xb8], mm0
        movd    [rbx + 0xc0], mm1
        movntq  [rbx + 0xc8], mm2
        pinsrw  mm2, word ptr [rbx + 0xd0], 1
        lea     rdi, [rbx + 0xd8]
        movq    mm3, [rip + every_third]
        maskmovq mm2, mm3
        cvtpi2ps xmm0, [rbx + 0xe0]
        cvtps2pi mm0, [rip + single]
        movq    [rbx + 0xe8], mm0
        emms
        finish

        .data
        .balign 16
single: .float  1.5, 2.25
double: .double -2.75
integer:
        .quad   0x1234
extended:
        .quad   0xc000000000000000
        .word   0x4001
decimal:
        .byte   0x21, 0x43, 0x65, 0x87, 0x09, 0, 0, 0, 0, 0x80
every_third:
        .byte   0x80, 0, 0x7f, 0xff, 0, 0, 0x81, 0
        .balign 16
environment:
        .long   0xffff037f, 0xffff0000, 0xffffffff, 0, 0, 0, 0xffff0000
short_environment:
        .word   0x037f, 0, 0xffff, 0, 0, 0, 0
        .balign 16
state:  .long   0xffff037f, 0xffff1800, 0xffffaaaa, 0, 0, 0, 0xffff0000
        .rept   8
        .quad   0x8123456789abcdef
        .word   0x4000
        .endr
        .text
