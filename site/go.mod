module github.com/autonode-io/autonode/site

go 1.26.0

require github.com/imfing/hextra v0.12.1
