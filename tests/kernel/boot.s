# From PVH (32-bit protected mode without paging, Xen's start_info.h) to 64-bit code, with the first 128 GiB mapped as they are.

.section .note.Xen, "a", @note
    .long 4, 4, 18
    .asciz "Xen"
    .long pvh_start

.section .text.boot, "ax", @progbits
.code32
.globl pvh_start
pvh_start:
    cli
    cld
    movl %ebx, %esi
    movl $stack_top, %esp
    movl $pdpt + 3, pml4

    xorl %ecx, %ecx
1:  movl %ecx, %eax
    shll $12, %eax
    addl $directories + 3, %eax
    movl %eax, pdpt(,%ecx,8)
    incl %ecx
    cmpl $128, %ecx
    jb 1b

    # Pages of 2 MiB.
    xorl %ecx, %ecx
2:  movl %ecx, %eax
    shll $21, %eax
    orl $0x83, %eax
    movl %eax, directories(,%ecx,8)
    movl %ecx, %eax
    shrl $11, %eax
    movl %eax, directories + 4(,%ecx,8)
    incl %ecx
    cmpl $65536, %ecx
    jb 2b

    # Physical address extension, and SSE.
    movl %cr4, %eax
    orl $0x620, %eax
    movl %eax, %cr4
    movl $pml4, %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx
    rdmsr
    orl $0x100, %eax
    wrmsr
    movl %cr0, %eax
    andl $0xfffffff3, %eax
    orl $0x80000003, %eax
    movl %eax, %cr0
    lgdt gdt_pointer
    ljmp $8, $long_mode

.code64
long_mode:
    movw $16, %ax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    leaq stack_top(%rip), %rsp
    movl %esi, %edi
    call kernel_main
# Named by the unwinding tables of the core library. Nothing unwinds.
.globl rust_eh_personality
rust_eh_personality:
3:  hlt
    jmp 3b

.section .rodata.boot, "a", @progbits
.balign 8
gdt:
    .quad 0, 0x00209a0000000000, 0x0000920000000000
gdt_pointer:
    .word 23
    .long gdt

.section .bss.boot, "aw", @nobits
.balign 4096
pml4:
    .skip 4096
pdpt:
    .skip 4096
directories:
    .skip 128 * 4096
    .skip 64 << 10
stack_top:
