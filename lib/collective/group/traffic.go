package group

import (
	"context"
	"sync"

	"github.com/shardbook/shardbook/lib/collective/plan"
)

// Counted is a rank's view of a group that counts the messages and bytes that the rank
// sends, directly or by [RunPlan], to compare them with a plan's ([plan.Count]). Messages
// inside the group's own collectives, and in sub-groups, are not counted.
type Counted interface {
	Group
	// Total is what the rank has sent without an error.
	Total() plan.Load
}

type counted struct {
	Group
	mu   sync.Mutex
	sent []plan.Load // by receiver
}

// Count returns a view of g that counts from here on.
func Count(g Group) Counted { return &counted{Group: g, sent: make([]plan.Load, g.Size())} }

func (c *counted) Total() (total plan.Load) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, load := range c.sent {
		total.Messages += load.Messages
		total.Bytes += load.Bytes
	}
	return total
}

// Do makes a call, and counts it if it is a send.
func (c *counted) Do(ctx context.Context, call Call) error {
	err := c.Group.Do(ctx, call)
	c.count(call, err)
	return err
}

// Start makes a call in the background, and counts it if it is a send.
func (c *counted) Start(ctx context.Context, call Call) *Pending {
	p := c.Group.Start(ctx, call)
	if call.Kind != KindSend {
		return p
	}
	return NewPending(func() error {
		err := p.Wait()
		c.count(call, err)
		return err
	})
}

func (c *counted) count(call Call, err error) {
	if call.Kind != KindSend || err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[call.Peer].Messages++
	c.sent[call.Peer].Bytes += call.In.Len * call.Type.Size()
}
