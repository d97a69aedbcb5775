"""What others are to be told: events, written in the transaction of what they tell, and who was told of them."""
