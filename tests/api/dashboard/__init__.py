"""The pages, as the server renders them."""
