// Package vector has headers for C kernels: vector.h and each.h, vectors of floats for loops that are compiled for
// several instruction sets, array.h, arrays of float32 and its halves, and matmul.h and tile.h, matmuls of these.
// Packages whose C includes them import it, so that they are vendored with them and rebuilt when they change.
package vector

import (
	_ "github.com/shardbook/shardbook/internal/half"   // whose header array.h includes
	_ "github.com/shardbook/shardbook/lib/xla/foreign" // likewise
)
