/* Putting a function of ours into the linkage slot of a library. */
#define _GNU_SOURCE 1 /* dlinfo, dladdr */
#include "kernel/linkage_slot.h"
#include "format/format.h"
#include "kernel/sealed_word.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

/* A slot for calls; one for addresses, which compilers and optimizers of binaries also use for calls
 * (-fno-plt, BOLT); and a word of data that begins as an address. */
#if defined(__x86_64__)
enum { JUMP_SLOT = R_X86_64_JUMP_SLOT, ADDRESS_SLOT = R_X86_64_GLOB_DAT, DATA_WORD = R_X86_64_64 };
#else
enum { JUMP_SLOT = R_AARCH64_JUMP_SLOT, ADDRESS_SLOT = R_AARCH64_GLOB_DAT, DATA_WORD = R_AARCH64_ABS64 };
#endif

typedef struct {
    const ElfW(Rela) * slots;
    size_t bytes; /* of the slots */
} slot_list;

typedef struct {
    slot_list jumps, addresses;
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
    size_t relative = 0; /* entries at the beginning that name no symbol: a large library has a million of them */
    for (const ElfW(Dyn) *one = map->l_ld; one->d_tag != DT_NULL; one++) {
        if (one->d_tag == DT_JMPREL)
            found.jumps.slots = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_PLTRELSZ)
            found.jumps.bytes = one->d_un.d_val;
        else if (one->d_tag == DT_RELA)
            found.addresses.slots = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_RELASZ)
            found.addresses.bytes = one->d_un.d_val;
        else if (one->d_tag == DT_RELACOUNT)
            relative = one->d_un.d_val;
        else if (one->d_tag == DT_SYMTAB)
            found.symbols = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_STRTAB)
            found.names = resolve(map, one->d_un.d_ptr);
        else if (one->d_tag == DT_PLTREL)
            is_rela = one->d_un.d_val == DT_RELA;
    }
    int has_names = found.symbols != NULL && found.names != NULL;
    if (!is_rela || found.jumps.slots == NULL || !has_names)
        found.jumps.bytes = 0;
    if (found.addresses.slots == NULL || !has_names || relative * sizeof(ElfW(Rela)) > found.addresses.bytes)
        return (found.addresses.bytes = 0, found);
    found.addresses.slots += relative;
    found.addresses.bytes -= relative * sizeof(ElfW(Rela));
    return found;
}

/* Return the name of the symbol that a slot of this kind is for; NULL if it is another kind of entry. */
static const char *name_of(const ElfW(Rela) * one, ElfW(Xword) kind, const linkage *its)
{
    if (ELF64_R_TYPE(one->r_info) != kind)
        return NULL;
    return its->names + its->symbols[ELF64_R_SYM(one->r_info)].st_name;
}

static void **find_in(const slot_list *list, ElfW(Xword) kind, const linkage *its, const struct link_map *map,
                      const char *symbol)
{
    for (size_t i = 0; i < list->bytes / sizeof *list->slots; i++) {
        const char *name = name_of(&list->slots[i], kind, its);
        if (name != NULL && strcmp(name, symbol) == 0)
            return (void **)(map->l_addr + list->slots[i].r_offset);
    }
    return NULL;
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
    void **at = find_in(&its.jumps, JUMP_SLOT, &its, map, symbol);
    if (at == NULL)
        at = find_in(&its.addresses, ADDRESS_SLOT, &its, map, symbol);
    slot->look = at == NULL ? -1 : sonde_word_look(at);
    if (slot->look >= 0 && is_of_library(map, *at) && is_of_library(map, slot->original))
        slot->first = *(slot->at = at);
}

/* Look once for all slots of a list: they lie together, and the file with all mappings is long. */
static void find_imports_in(const slot_list *list, ElfW(Xword) kind, const linkage *its, const struct link_map *map,
                            sonde_linkage_slot *slots, const char *const *symbols, int count)
{
    enum { NOT_YET = 1 << 8 };
    int look = NOT_YET;
    for (size_t i = 0; i < list->bytes / sizeof *list->slots && look >= 0; i++) {
        const char *name = name_of(&list->slots[i], kind, its);
        int at = 0;
        while (name != NULL && at < count && strcmp(name, symbols[at]) != 0)
            at++;
        if (name == NULL || at == count || slots[at].at != NULL || slots[at].original == NULL)
            continue;
        void **word = (void **)(map->l_addr + list->slots[i].r_offset);
        if (look == NOT_YET)
            look = sonde_word_look(word);
        if (look >= 0 && (*word == slots[at].original || is_of_library(map, *word)))
            slots[at] = (sonde_linkage_slot){word, slots[at].original, *word, look};
    }
}

void sonde_linkage_imports_find(sonde_linkage_slot *slots, void *library, void *origin, const char *const *symbols,
                                int count)
{
    struct link_map *map = NULL;
    int is_known = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
    for (int at = 0; at < count; at++) {
        void *original = dlsym(origin, symbols[at]);
        void *own = is_known ? dlsym(library, symbols[at]) : NULL;
        /* A library may bring a copy of the other one. */
        slots[at] = (sonde_linkage_slot){.original = own == original ? original : NULL};
    }
    if (!is_known)
        return;
    linkage its = read_linkage(map);
    find_imports_in(&its.jumps, JUMP_SLOT, &its, map, slots, symbols, count);
    find_imports_in(&its.addresses, ADDRESS_SLOT, &its, map, slots, symbols, count);
}

static void visit_in(const slot_list *list, ElfW(Xword) kind, const linkage *its, const struct link_map *map,
                     const char *const *symbols, int count, sonde_linkage_visit *visit, void *context)
{
    for (size_t i = 0; i < list->bytes / sizeof *list->slots; i++) {
        const char *name = name_of(&list->slots[i], kind, its);
        int at = 0;
        while (name != NULL && at < count && strcmp(name, symbols[at]) != 0)
            at++;
        if (name == NULL || at == count || its->symbols[ELF64_R_SYM(list->slots[i].r_info)].st_shndx != SHN_UNDEF)
            continue;
        visit(context, at, (void **)(map->l_addr + list->slots[i].r_offset),
              kind == DATA_WORD ? SONDE_LINKAGE_DATA : SONDE_LINKAGE_SLOT);
    }
}

void sonde_linkage_visit_imports(uintptr_t address, const void *dynamic, const char *const *symbols, int count,
                                 sonde_linkage_visit *visit, void *context)
{
    const struct link_map map = {.l_addr = address, .l_ld = (ElfW(Dyn) *)dynamic};
    linkage its = read_linkage(&map);
    visit_in(&its.jumps, JUMP_SLOT, &its, &map, symbols, count, visit, context);
    visit_in(&its.addresses, ADDRESS_SLOT, &its, &map, symbols, count, visit, context);
    visit_in(&its.addresses, DATA_WORD, &its, &map, symbols, count, visit, context);
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
    if (found != slot->original && found != slot->first)
        return -1;
    int status = sonde_word_swap(slot->at, slot->look, found, ours);
    if (status < 0 && status != -EAGAIN)
        slot->at = NULL; /* it is not for us: do not ask at every step */
    return status < 0 ? -1 : 0;
}

void sonde_linkage_slot_give_back(sonde_linkage_slot *slot, void *ours)
{
    /* If somebody took the slot after us, it stays theirs; ours then only passes calls on. */
    if (slot->at != NULL && sonde_load_relaxed(slot->at) == ours)
        (void)sonde_word_swap(slot->at, slot->look, ours, slot->original);
}
