package main

import (
	"testing"

	"github.com/shardbook/shardbook/internal/must"
	"github.com/shardbook/shardbook/internal/systest"
)

func TestWarmUp(t *testing.T) {
	defer systest.NoLeaks(t)()
	must.Do(t, warmUp(t.Context(), []string{"../.."}, fakeSettings()))
	s := fakeSettings()
	s.command = []string{"false"}
	must.Refuse(t, "a gopls that ends", warmUp(t.Context(), []string{"../.."}, s), "exit status 1")
	must.Refuse(t, "no checkout", warmUp(t.Context(), []string{t.TempDir()}, s), "no libraries")
}
