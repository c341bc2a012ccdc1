//go:build mpi

package mpi

// SetPieceCount makes calls be cut into pieces of n elements.
func SetPieceCount(n int) { pieceCount = n }
