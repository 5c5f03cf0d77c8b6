"""What the API and the dashboard show: questions to the store and the control database, and the answers."""
