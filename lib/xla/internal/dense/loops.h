// The loops that matmul.c compiles for each instruction set.
#include "columns.h"
#include "../../../../internal/vector/tile.h"
