// Package mpitest makes a rank of a test program that mpirun started. It needs the tag mpi.
package mpitest
