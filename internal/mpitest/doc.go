// Package mpitest turns a test program that mpirun started into a rank. It needs the tag mpi.
package mpitest
