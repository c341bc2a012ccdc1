//go:build mpi

package mpi

// SetPieceCount makes calls be cut into pieces of so many elements.
func SetPieceCount(n int) { pieceCount = n }
