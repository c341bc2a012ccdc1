package main

import (
	"sync"

	"github.com/shardbook/shardbook/internal/echarts"
	"github.com/shardbook/shardbook/internal/echarts/draw"
	"github.com/shardbook/shardbook/lib/resident"
)

// charts draws cells' charts, and keeps the pictures for cells that are run again.
type charts struct {
	engine draw.Engine

	mu       sync.Mutex
	pictures map[echarts.Request]echarts.Picture
}

// keptPictures is how many pictures are kept, some tens of kilobytes each.
const keptPictures = 200

func (c *charts) draw(_ *resident.Session, r echarts.Request) (echarts.Picture, error) {
	c.mu.Lock()
	picture, ok := c.pictures[r]
	c.mu.Unlock()
	if ok {
		return picture, nil
	}
	picture, err := c.engine.Draw(r)
	if err != nil {
		return picture, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pictures) >= keptPictures {
		clear(c.pictures)
	}
	c.pictures[r] = picture
	return picture, nil
}
