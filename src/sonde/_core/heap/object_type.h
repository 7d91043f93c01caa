/* The type of the object in a block. */
#ifndef SONDE_OBJECT_TYPE_H
#define SONDE_OBJECT_TYPE_H

#include "binding/binding.h"

#define SONDE_TYPE_BYTES 64

/* Copy the name of the type of the object that a block begins with. Returns its bytes; 0 if the block
 * holds no object that we recognise. Whatever is there, no memory is touched that is not mapped. */
size_t sonde_object_type(uintptr_t block, size_t size, char name[SONDE_TYPE_BYTES]);

#endif
