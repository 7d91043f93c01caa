/* The ranges of loaded objects, from the dynamic linker's list. */
#define _GNU_SOURCE 1
#include "kernel/code_range.h"

#include <errno.h>
#include <link.h>

typedef struct {
    uintptr_t inside;
    sonde_range *found;
} question;

static int compare_object(struct dl_phdr_info *object, size_t object_bytes, void *arg)
{
    (void)object_bytes;
    question *asked = arg;
    sonde_range range = {UINTPTR_MAX, 0};
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        uintptr_t end = begin + object->dlpi_phdr[i].p_memsz;
        range.begin = begin < range.begin ? begin : range.begin;
        range.end = end > range.end ? end : range.end;
    }
    if (asked->inside < range.begin || asked->inside >= range.end)
        return 0;
    *asked->found = range;
    return 1;
}

static sonde_range kept[2]; /* ourselves, and Python */
static int kept_n;

int sonde_find_object(const void *inside, sonde_range *object)
{
    question asked = {(uintptr_t)inside, object};
    for (int i = 0; i < kept_n; i++)
        if (asked.inside >= kept[i].begin && asked.inside < kept[i].end)
            return (*object = kept[i], 0);
    return dl_iterate_phdr(compare_object, &asked) == 1 ? 0 : -ENOENT;
}

void sonde_keep_object(const void *inside)
{
    if (kept_n < 2 && sonde_find_object(inside, &kept[kept_n]) == 0)
        kept_n++;
}

__attribute__((constructor)) static void keep_ourselves(void) { sonde_keep_object((const void *)sonde_find_object); }
