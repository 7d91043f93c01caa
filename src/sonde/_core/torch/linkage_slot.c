#define _GNU_SOURCE 1 /* dlinfo, dladdr */
#include "torch/linkage_slot.h"
#include "format/format.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT };
#else
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT };
#endif

typedef struct {
    const ElfW(Rela) * slots;
    size_t bytes; /* of the slots */
    const ElfW(Sym) * symbols;
    const char *names;
} linkage;

/* Make an address of a value: glibc's loader has done so already, that of musl leaves it as it
 * was. */
static const void *resolve(const struct link_map *map, ElfW(Addr) value)
{
    return (const void *)(value < map->l_addr ? value + map->l_addr : value);
}

static linkage read_linkage(const struct link_map *map)
{
    linkage found = {0};
    int is_rela = 0;
    for (const ElfW(Dyn) *one = map->l_ld; one->d_tag != DT_NULL; one++) {
        if (one->d_tag == DT_JMPREL)
            found.slots = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_PLTRELSZ)
            found.bytes = one->d_un.d_val;
        else if (one->d_tag == DT_SYMTAB)
            found.symbols = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_STRTAB)
            found.names = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_PLTREL)
            is_rela = one->d_un.d_val == DT_RELA;
    }
    if (!is_rela || found.slots == NULL || found.symbols == NULL || found.names == NULL)
        found.bytes = 0;
    return found;
}

typedef struct {
    uintptr_t at;
    int is_writable;
} question;

/* Is the slot in memory that stays writable once the library is loaded? */
static int ask_object(struct dl_phdr_info *object, size_t size, void *arg)
{
    (void)size;
    question *asked = arg;
    int is_in = 0, is_sealed = 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t begin = object->dlpi_addr + part->p_vaddr;
        if (asked->at < begin || asked->at >= begin + part->p_memsz)
            continue;
        is_in |= part->p_type == PT_LOAD && (part->p_flags & PF_W) != 0;
        is_sealed |= part->p_type == PT_GNU_RELRO;
    }
    asked->is_writable |= is_in && !is_sealed;
    return is_in;
}

/* Does this address belong to the library? Until the first call a slot holds the address of code
 * in the library that looks the function up. */
static int is_of_library(const struct link_map *map, const void *target)
{
    Dl_info about;
    return dladdr(target, &about) != 0 && about.dli_fname != NULL && strcmp(about.dli_fname, map->l_name) == 0;
}

void sonde_linkage_slot_find(sonde_linkage_slot *slot, void *library, const char *symbol)
{
    struct link_map *map;
    *slot = (sonde_linkage_slot){.original = dlsym(library, symbol)};
    if (slot->original == NULL || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        return;
    linkage its = read_linkage(map);
    for (size_t i = 0; i < its.bytes / sizeof *its.slots; i++) {
        const ElfW(Rela) *one = &its.slots[i];
        if (ELF64_R_TYPE(one->r_info) != JUMP_SLOT ||
            strcmp(its.names + its.symbols[ELF64_R_SYM(one->r_info)].st_name, symbol) != 0)
            continue;
        void **at = (void **)(map->l_addr + one->r_offset);
        question asked = {.at = (uintptr_t)at};
        (void)dl_iterate_phdr(ask_object, &asked);
        if (asked.is_writable && is_of_library(map, *at) && is_of_library(map, slot->original))
            slot->first = *(slot->at = at);
        return;
    }
}

/* If a first call is being resolved in another thread, that writes the function over ours: then
 * we take the slot again the next time. */
int sonde_linkage_slot_take(sonde_linkage_slot *slot, void *ours)
{
    if (slot->at == NULL)
        return -1;
    void *found = sonde_load_relaxed(slot->at);
    if (found == ours)
        return 0;
    return (found == slot->original || found == slot->first) && sonde_cas_relaxed(slot->at, &found, ours) ? 0 : -1;
}

void sonde_linkage_slot_give_back(sonde_linkage_slot *slot, void *ours)
{
    void *expected = ours;
    /* If somebody took the slot after us, it stays theirs; ours then only passes calls on. */
    if (slot->at != NULL)
        (void)sonde_cas_relaxed(slot->at, &expected, slot->original);
}
