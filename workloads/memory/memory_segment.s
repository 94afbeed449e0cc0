# Operands relative to fs, whose base is set by system calls and by wrfsbase, and moved between accesses.
        .include "memory.inc"

        .macro  accesses
        mov     rax, fs:[0x10]
        mov     fs:[0x18], rax
        mov     rdx, fs:[-8]            # as for variables of threads
        mov     fs:[-0x10], rdx
        cmp     byte ptr fs:[-0x18], 0x68
        keep_flags
        add     dword ptr fs:[-0x20], 3
        mov     qword ptr fs:[-0x28], -5
        movzx   edx, word ptr fs:[-0x2a]
        imul    rdx, fs:[-0x38], 7
        keep    rdx
        mov     rdx, -0x40
        xor     [rip + data + 0x7f8], edx
        inc     byte ptr fs:[rdx]
        mov     ecx, 3
        mov     eax, fs:[rcx * 8]
        add     fs:[rcx * 8 + 8], eax
        mov     edx, 0x20
        mov     fs:[rdx + rcx * 4 + 1], cl
        mov     r15d, 0x40
        mov     r15, fs:[r15]
        keep    r15
        mov     rax, -8
        mov     rax, fs:[rax + 0x50]
        keep    rax
        mov     rdx, 0x1234567800000010
        mov     eax, fs:[edx + 0x20]    # the base is added to 32 bits
        keep    rax
        push    qword ptr fs:[0x58]
        pop     qword ptr fs:[0x60]
        lock inc dword ptr fs:[0x68]
        xchg    fs:[0x6c], eax
        cmpxchg fs:[0x70], ecx
        bts     fs:[0x78], ecx
        mov     eax, 100
        btc     fs:[0x78], eax
        movups  xmm0, fs:[0x81]
        movups  fs:[0x91], xmm0
        fild    word ptr fs:[0x10]
        fstp    tbyte ptr fs:[0xa1]
        mov     esi, 0x18
        lea     rdi, [rip + data + 0x700]
        lods    al, byte ptr fs:[rsi]
        movs    word ptr [rdi], word ptr fs:[rsi]
        mov     ecx, 5
        rep movs byte ptr [rdi], byte ptr fs:[rsi]
        cmps    dword ptr fs:[rsi], dword ptr [rdi]
        keep_flags
        .byte   0x64                    # fs: on a lea is no access, and adds no base
        lea     rax, [rcx + 0x10]
        keep    rax
        lea     rax, [rip + plain]
        mov     fs:[0xb0], rax
        call    qword ptr fs:[0xb0]
        lea     rax, [rip + 1f]
        mov     fs:[0xb8], rax
        jmp     qword ptr fs:[0xb8]
1:      movabs  rax, fs:[0x10]
        movabs  fs:[0xc0], eax
        mov     ebx, 0x10
        mov     eax, 2
        xlat    byte ptr fs:[rbx]
        keep    rax
        .endm

        .macro  set_base place
        mov     eax, 158                # arch_prctl
        mov     edi, 0x1002             # ARCH_SET_FS
        lea     rsi, [rip + \place]
        syscall
        .endm

_start:
        set_base data+0x80
        accesses
        set_base data+0x101
        accesses
        mov     eax, 158
        mov     edi, 0x1003             # ARCH_GET_FS
        lea     rsi, [rip + sink]
        syscall
        mov     rax, [rip + sink]

        mov     eax, 7                  # fsgsbase, which the kernel must have enabled too
        xor     ecx, ecx
        cpuid
        bt      ebx, 0
        jc      1f
        lacks   fsgsbase
        jmp     no_fsgsbase
1:      rdfsbase r12
        keep    r12
        lea     rax, [rip + data + 0x203]
        wrfsbase rax
        accesses
        lea     r13, [rip + data + 0x300]
        mov     r14d, 20
2:      wrfsbase r13                    # another base in every round
        mov     rax, fs:[8]
        add     fs:[0x10], rax
        rdfsbase rax
        keep    rax
        add     r13, 8
        dec     r14d
        jnz     2b
        wrfsbase r12
        mov     rax, fs:[8]
        keep    rax
        rdfsbase eax
        keep    rax
        lea     eax, [data + 0x400]
        wrfsbase eax
        mov     rax, fs:[0x10]
        keep    rax
        wrfsbase r12
no_fsgsbase:
        finish

plain:  ret
