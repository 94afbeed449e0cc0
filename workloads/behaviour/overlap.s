# The same bytes decoded in two ways: jumps into the middle of an instruction, and over a prefix.
        .include "freestanding.inc"
        .globl  _start
_start:
        xor     ebx, ebx
        mov     ecx, 3
again:  jmp     inside + 1
inside: .byte   0xb8                    # mov eax, imm32 when entered here; the immediate is code:
        inc     ebx                     # ff c3
        nop
        nop
        dec     ecx
        jz      1f
        cmp     ecx, 1
        je      inside                  # once as the mov
        jmp     again
1:      cmp     eax, 0x9090c3ff         # the code above, loaded as a number
        jne     2f
        add     ebx, 0x100
2:      jmp     3f + 1                  # skips the lock prefix
3:      lock add dword ptr [rip + cell], 5
        mov     eax, [rip + cell]
        add     ebx, eax
        report  rbx                     # 2 + 0x100 + 5 = 0x107
        exit    0

        .data
cell:   .long   0
