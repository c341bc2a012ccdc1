package group

import "github.com/shardbook/shardbook/internal/systest"

var noLeaks = systest.NoLeaks
