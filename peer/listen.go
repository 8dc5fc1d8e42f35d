package peer

import (
	"fmt"
	"net"
	"os"
)

// Listen binds a socket at a peer URL, for Serve. A unix socket's file that an earlier process left is removed.
func Listen(url string) (net.Listener, error) {
	a, err := parseAddress(url)
	if err != nil {
		return nil, err
	}
	if a.network == "unix" {
		if err := os.Remove(a.addr); err != nil && !os.IsNotExist(err) {
			return nil, fmt.Errorf("peer: listening on %s: removing an old socket: %w", url, err)
		}
	}
	lis, err := net.Listen(a.network, a.addr)
	if err != nil {
		return nil, fmt.Errorf("peer: listening on %s: %w", url, err)
	}
	return lis, nil
}
