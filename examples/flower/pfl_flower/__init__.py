"""Any method of pfl_lite as a Flower app: `server_app` and `client_app`, and in `shared` what both must agree on."""
