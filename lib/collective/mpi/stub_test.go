//go:build !mpi

package mpi_test

import (
	"strings"
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/lib/collective/mpi"
)

func TestWithoutTheTag(t *testing.T) {
	_, err := mpi.World()
	for _, want := range []string{"apt-get install openmpi-bin libopenmpi-dev", "-tags mpi"} {
		must.Refuse(t, "World returns", err, want)
	}
	if _, err := mpi.World(mpi.Timeout(-1)); err == nil || !strings.Contains(err.Error(), "timeout of -1ns") {
		t.Errorf("a negative timeout gives the error %v", err)
	}
}
