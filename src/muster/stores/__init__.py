"""Files behind the domains' store ports; the domains never import this package."""
