/* The source `variable`: what arrays and tensors hold. Needs the GIL. */
#ifndef SONDE_ARRAY_SUMMARY_H
#define SONDE_ARRAY_SUMMARY_H

#include "binding/binding.h"

extern PyMethodDef sonde_array_summary_methods[];

#endif
