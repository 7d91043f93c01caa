/* Functions that stand in front of those that start processes. */
#ifndef SONDE_SPAWNER_H
#define SONDE_SPAWNER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef sonde_spawner_methods[];

#endif
