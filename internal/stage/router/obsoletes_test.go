package router

import ()
