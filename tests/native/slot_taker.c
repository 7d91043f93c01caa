/* Take the slot of slot_library.c and give it back: print what the library answers, and how the slot's page is kept. */
#include "kernel/sealed_word.h"
#include "kernel/linkage_slot.h"

#include <dlfcn.h>
#include <stdio.h>

static sonde_linkage_slot slot;

static int ours(int value) { return ((int (*)(int))slot.original)(value) + 100; }

static void tell(int (*outer)(int))
{
    printf("%d %s\n", outer(1), sonde_word_look(slot.at) == SONDE_WORD_SEALED ? "sealed" : "writable");
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_LAZY) : NULL;
    int (*outer)(int) = library == NULL ? NULL : (int (*)(int))dlsym(library, "outer");
    if (outer == NULL)
        return 2;
    sonde_linkage_slot_find(&slot, library, "inner");
    if (slot.at == NULL) {
        printf("no slot\n");
        return 0;
    }
    for (int i = 0; i < 2; i++) {
        int status = sonde_linkage_slot_take(&slot, (void *)ours);
        printf("%d\n", status);
        tell(outer);
        sonde_linkage_slot_give_back(&slot, (void *)ours);
        tell(outer);
    }
    return 0;
}
