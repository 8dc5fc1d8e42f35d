package node

// The kinds of letters between nodes. The numbers are on the wire: never change one, never use one again.
const (
	kindRaft          = 1  // raftgroup's, opaque
	kindRangeRequest  = 2  // braidpb.RangeRequest, to the node that leads the range
	kindRangeResponse = 3  // braidpb.RangeResponse, back
	kindState         = 4  // braidpb.StateRequest
	kindStateChunk    = 5  // braidpb.StateChunk
	kindOrder         = 16 // and above: order's own kinds, shifted by this
)

// AtMostOnce tells whether letters of a kind must not be doubled on their way (the transport never does): a request that is carried
// out twice is a write done twice.
func AtMostOnce(kind uint32) bool { return kind == kindRangeRequest }
