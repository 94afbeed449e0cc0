# The 128 bytes below the stack pointer are the program's: nothing may be written there across branches, indirect jumps
# or system calls.
        .include "freestanding.inc"
        .globl  _start
_start:
        mov     ecx, 16
        lea     rax, [rsp - 128]
1:      mov     [rax + rcx * 8 - 8], rcx
        loop    1b
        lea     rdx, [rip + 2f]
        jmp     rdx                     # indirect: a lookup happens
2:      mov     eax, 39                 # getpid: the kernel is entered
        syscall
        jmp     qword ptr [rip + target]
3:      cmp     rsp, 0
        jz      4f                      # conditional
        jmp     5f
4:      nop
5:      xor     ebx, ebx
        mov     ecx, 16
6:      add     rbx, [rsp + rcx * 8 - 136]
        loop    6b
        report  rbx                     # 1 + ... + 16 = 136 = 0x88
        exit    0

        .data
target: .quad   3b
