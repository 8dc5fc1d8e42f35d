package clientapi

import (
	"fmt"
	"net"
	"net/url"
	"os"
)

// bound is a socket with the URL that it was made from.
type bound struct {
	url string
	lis net.Listener
}

// bind listens at an http or unix URL. A socket file that is left over is removed, as etcd does.
func bind(listen func(network, address string) (net.Listener, error), s string) (bound, error) {
	u, err := url.Parse(s)
	if err != nil {
		return bound{}, fmt.Errorf("listening for clients: %w", err)
	}
	network, address := "tcp", u.Host
	switch u.Scheme {
	case "http":
	case "unix":
		network, address = "unix", u.Host+u.Path
		if err := os.Remove(address); err != nil && !os.IsNotExist(err) {
			return bound{}, fmt.Errorf("listening for clients on %s: removing an old socket: %w", s, err)
		}
	case "https", "unixs":
		return bound{}, fmt.Errorf("listening for clients on %s: TLS is not supported in this version", s)
	default:
		return bound{}, fmt.Errorf("listening for clients on %s: unknown scheme %q", s, u.Scheme)
	}
	lis, err := listen(network, address)
	if err != nil {
		return bound{}, fmt.Errorf("listening for clients on %s: %w", s, err)
	}
	return bound{s, lis}, nil
}
