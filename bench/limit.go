package main

import (
	"context"
	"runtime"

	"github.com/shardbook/shardbook/lib/collective/group"
)

// serveLimit makes a subject of threads that do next to nothing but one thing at the same time, one a core: what they
// take is the best that the machine could do.
func serveLimit(thread func(context.Context, group.Group) subject) server {
	return func(ctx context.Context) (subject, func(), error) {
		return serveRanks(runtime.GOMAXPROCS(0), func(g group.Group) (subject, error) { return thread(ctx, g), nil })
	}
}
